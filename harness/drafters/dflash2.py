"""DFlash2: a DFlash head with convolutions, whose draft tokens a selector chooses among few (package dflash)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.config.drafter import DrafterTraits
from harness.drafters.head import BlockHeadConfig

if TYPE_CHECKING:
    from pathlib import Path

    from harness.models.head import Head
    from harness.models.target import TargetModel


@dataclass(frozen=True)
class DFlash2(BlockHeadConfig):
    traits = DrafterTraits(has_model=True, in_zoo=False)

    def load(self, folder: Path, target: TargetModel) -> Head:
        from harness.drafters.registry import accepted_of
        from harness.models.dflash2 import load_dflash2

        return load_dflash2(folder, target, accepted=accepted_of(self), choices=self.head_choices)

    def random(self, target: TargetModel) -> Head:
        from harness.drafters.registry import accepted_of, sizes_of
        from harness.models.random_head import random_dflash2

        return random_dflash2(target, sizes_of(self, target), accepted_of(self), choices=self.head_choices)
