"""EAGLE-3: one decoder layer over three of the target's hidden states, with a smaller vocabulary (arXiv 2503.01840)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.config.drafter import DrafterTraits
from harness.drafters.head import LayeredHeadConfig

if TYPE_CHECKING:
    from pathlib import Path

    from harness.models.head import Head
    from harness.models.target import TargetModel


@dataclass(frozen=True)
class Eagle3(LayeredHeadConfig):
    traits = DrafterTraits(has_model=True, drafts_trees=True, built_in_for=("HuggingFaceTB/SmolLM2-135M-Instruct",))

    def load(self, folder: Path, target: TargetModel) -> Head:
        from harness.drafters.registry import accepted_of
        from harness.models.eagle3 import load_eagle3

        return load_eagle3(folder, target, accepted=accepted_of(self), choices=self.head_choices)

    def random(self, target: TargetModel) -> Head:
        from harness.drafters.registry import accepted_of, sizes_of
        from harness.models.random_head import random_eagle3

        return random_eagle3(target, sizes_of(self, target), accepted_of(self), choices=self.head_choices)
