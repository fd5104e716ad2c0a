"""Self-speculation: the target without some of its layers drafts for it (Draft & Verify, arXiv 2309.08168).

No second checkpoint. It keeps keys and values of its own: behind the first layer that is left out the others see other
states than in the target, so that their keys and values are other ones too. Early exit (LayerSkip, arXiv 2404.16710)
leaves out the last layers; its cache could be the target's, and is one of its own here all the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.config.drafter import DrafterConfig, DrafterTraits
from harness.config.models import require

if TYPE_CHECKING:
    from harness.config.cell import CellConfig
    from harness.drafters.protocol import Drafter
    from harness.drafters.registry import DrafterSetup
    from harness.models.target import TargetModel


@dataclass(frozen=True)
class SelfSpeculation(DrafterConfig):
    skip_layers: tuple[int, ...] = ()
    """Layers of the target, counted from 0, that drafts leave out; at least one."""
    traits = DrafterTraits(is_of_target=True, drafts_trees=True, name="{kind} (without layers {skip_layers})")

    def __post_init__(self) -> None:
        layers = self.skip_layers
        different = len(set(layers)) == len(layers) and all(index >= 0 for index in layers)
        require(different, "drafter.skip_layers", "different layers, counted from 0", list(layers))

    @property
    def network_key(self) -> tuple[object, ...]:
        return (self.skip_layers,)

    def refusal(self, cell: CellConfig) -> str | None:
        if self.skip_layers:
            return None
        return (
            "drafter=self_speculation is the target without some of its layers, found drafter.skip_layers=[]; name "
            "them, such as drafter.skip_layers=[2,3]"
        )

    def misfit(self, num_layers: int, target: str) -> str | None:
        unknown = [index for index in self.skip_layers if index >= num_layers]
        if unknown:
            return (
                f"drafter.skip_layers: expected layers of target {target}, from 0 to {num_layers - 1}, found "
                f"{', '.join(map(str, unknown))}"
            )
        if len(self.skip_layers) == num_layers:
            return (
                f"drafter.skip_layers: expected some of the {num_layers} layers of target {target}, found all of them"
            )
        return None

    def of_target(self, target: TargetModel) -> TargetModel:
        from harness.models.without_layers import without_layers

        wrong = self.misfit(target.num_layers, target.name)
        if wrong is not None:
            raise ValueError(wrong)
        return without_layers(target, self.skip_layers)

    def build(self, setup: DrafterSetup) -> Drafter:
        from harness.drafters.tree import model_drafter

        drafter = model_drafter(setup)
        # all are the target's
        drafter.num_parameters = 0
        return drafter
