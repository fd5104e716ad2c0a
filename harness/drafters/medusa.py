"""Medusa: one small network for each draft position over the target's last state (arXiv 2401.10774)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.config.drafter import DrafterTraits
from harness.drafters.head import HeadConfig

if TYPE_CHECKING:
    from pathlib import Path

    from harness.drafters.protocol import Drafter
    from harness.drafters.registry import DrafterSetup
    from harness.models.head import Head
    from harness.models.target import TargetModel


@dataclass(frozen=True)
class Medusa(HeadConfig):
    traits = DrafterTraits(has_model=True, drafts_trees=True, in_zoo=False)

    def build(self, setup: DrafterSetup) -> Drafter:
        from harness.drafters.medusa_run import MedusaDrafter, MedusaTreeDrafter
        from harness.models.medusa import MedusaHead

        head = setup.head
        assert isinstance(head, MedusaHead)
        if setup.tree is not None:
            return MedusaTreeDrafter(head, setup.draft_sampling, setup.shape, setup.tree, setup.caching)
        return MedusaDrafter(head, setup.draft_sampling, setup.shape, setup.caching)

    def load(self, folder: Path, target: TargetModel) -> Head:
        from harness.drafters.registry import accepted_of
        from harness.models.medusa import load_medusa

        return load_medusa(folder, target, accepted=accepted_of(self))

    def random(self, target: TargetModel) -> Head:
        from harness.drafters.registry import accepted_of, sizes_of
        from harness.models.random_head import random_medusa

        return random_medusa(target, sizes_of(self, target), accepted_of(self))
