"""A small language model of its own with the target's tokenizer (arXiv 2211.17192)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.config.drafter import DrafterTraits, NetworkConfig
from harness.config.models import Weights, require_shape_alone

if TYPE_CHECKING:
    from pathlib import Path

    from harness.config.cell import CellConfig
    from harness.drafters.protocol import Drafter
    from harness.drafters.registry import DrafterSetup
    from harness.models.target import TargetModel


@dataclass(frozen=True)
class DraftModel(NetworkConfig):
    shape: str | None = None
    """Sizes of a public model, by name, instead of a path; needs weights=random."""
    traits = DrafterTraits(has_model=True, drafts_trees=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        require_shape_alone("drafter", self.shape, self.path, self.weights)

    def refusal(self, cell: CellConfig) -> str | None:
        has_sizes = self.path is not None or self.shape is not None
        if self.weights is Weights.random and not has_sizes and not cell.target.is_built_in:
            return (
                "drafter=draft_model with drafter.weights=random needs drafter.shape or drafter.path: its sizes do not "
                f"follow from those of target {cell.target.name}"
            )
        return super().refusal(cell)

    def build(self, setup: DrafterSetup) -> Drafter:
        from harness.drafters.draft_model_run import DraftModelDrafter
        from harness.drafters.tree import TreeModelDrafter

        if setup.tree is not None:
            return TreeModelDrafter(setup.model, setup.draft_sampling, setup.shape, setup.tree, setup.caching)
        return DraftModelDrafter(setup.model, setup.draft_sampling, setup.shape, setup.caching)

    def load(self, folder: Path, target: TargetModel) -> TargetModel:
        from harness.drafters.registry import accepted_of
        from harness.models.draft_model import load_draft_model

        return load_draft_model(folder, target, accepted=accepted_of(self))

    def random(self, target: TargetModel) -> TargetModel:
        from harness.drafters.registry import accepted_of
        from harness.models.draft_model import random_draft_model
        from harness.models.random_target import architecture
        from harness.models.zoo import zoo_path

        is_ours = self.path is None and self.shape is None
        path = zoo_path("draft_model", with_weights=False) if is_ours else self.path
        given = architecture(path, self.shape, revision=self.revision, accepted=accepted_of(self))
        return random_draft_model(given, self.shape or given.source.parent.name, target)
