"""EAGLE: one decoder layer over the target's last hidden state (arXiv 2401.15077)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.config.drafter import DrafterTraits
from harness.drafters.head import HeadConfig

if TYPE_CHECKING:
    from pathlib import Path

    from harness.models.head import Head
    from harness.models.target import TargetModel


@dataclass(frozen=True)
class Eagle(HeadConfig):
    traits = DrafterTraits(has_model=True, drafts_trees=True)

    def load(self, folder: Path, target: TargetModel) -> Head:
        from harness.drafters.registry import accepted_of
        from harness.models.eagle import load_eagle

        return load_eagle(folder, target, accepted=accepted_of(self))

    def random(self, target: TargetModel) -> Head:
        from harness.drafters.registry import accepted_of, sizes_of
        from harness.models.random_head import random_eagle

        return random_eagle(target, sizes_of(self, target), accepted_of(self))
