"""P-EAGLE: an EAGLE-3 head that proposes all drafts in one forward (arXiv 2602.01469)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.config.drafter import DrafterTraits
from harness.drafters.head import LayeredHeadConfig

if TYPE_CHECKING:
    from pathlib import Path

    from harness.drafters.protocol import Drafter
    from harness.drafters.registry import DrafterSetup
    from harness.models.head import Head
    from harness.models.target import TargetModel


@dataclass(frozen=True)
class PEagle(LayeredHeadConfig):
    traits = DrafterTraits(has_model=True)

    def build(self, setup: DrafterSetup) -> Drafter:
        from harness.drafters.parallel import ParallelDrafter
        from harness.models.peagle import PEagleHead

        head = setup.head
        assert isinstance(head, PEagleHead)
        return ParallelDrafter(head, setup.draft_sampling, setup.shape, setup.caching)

    def load(self, folder: Path, target: TargetModel) -> Head:
        from harness.drafters.registry import accepted_of
        from harness.models.peagle import load_peagle

        return load_peagle(folder, target, accepted=accepted_of(self), choices=self.head_choices)

    def random(self, target: TargetModel) -> Head:
        from harness.drafters.registry import accepted_of, sizes_of
        from harness.models.random_head import random_peagle

        return random_peagle(target, sizes_of(self, target), accepted_of(self), choices=self.head_choices)
