"""The multi-token-prediction layer that comes in the target's own folder (arXiv 2412.19437)."""

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
class Mtp(HeadConfig):
    traits = DrafterTraits(has_model=True, drafts_trees=True, in_target=True)

    def load(self, folder: Path, target: TargetModel) -> Head:
        from harness.drafters.registry import accepted_of
        from harness.models.mtp import load_mtp

        return load_mtp(folder, target, accepted=accepted_of(self))

    def random(self, target: TargetModel) -> Head:
        from harness.models.random_head import random_mtp

        return random_mtp(target)
