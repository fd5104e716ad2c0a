"""DSpark: a DFlash head whose draft rows also depend on the token before them (arXiv 2607.05147)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.config.drafter import DrafterTraits
from harness.config.models import Anchor, HeadChoices
from harness.drafters.head import LayeredHeadConfig

if TYPE_CHECKING:
    from pathlib import Path

    from harness.drafters.protocol import Drafter
    from harness.drafters.registry import DrafterSetup
    from harness.models.head import Head
    from harness.models.target import TargetModel


@dataclass(frozen=True)
class DSpark(LayeredHeadConfig):
    anchor: Anchor | None = None
    """What the first place of a block predicts: mask is nothing, first is the first draft token; null: what its file
    says."""
    traits = DrafterTraits(has_model=True, in_zoo=False)

    @property
    def head_choices(self) -> HeadChoices:
        return HeadChoices(self.aux_layers, self.anchor)

    def build(self, setup: DrafterSetup) -> Drafter:
        from harness.drafters.block import BlockDrafter
        from harness.models.dspark import DSparkHead

        head = setup.head
        assert isinstance(head, DSparkHead)
        return BlockDrafter(head, setup.draft_sampling, setup.shape, setup.caching)

    def load(self, folder: Path, target: TargetModel) -> Head:
        from harness.drafters.registry import accepted_of
        from harness.models.dspark import load_dspark

        return load_dspark(folder, target, accepted=accepted_of(self), choices=self.head_choices)

    def random(self, target: TargetModel) -> Head:
        from harness.drafters.registry import accepted_of, sizes_of
        from harness.models.random_head import random_dspark

        return random_dspark(target, sizes_of(self, target), accepted_of(self), choices=self.head_choices)
