"""DSpark: a DFlash head whose draft rows also depend on the token before them (arXiv 2607.05147)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.config.drafter import DrafterTraits
from harness.config.models import Confidence, HeadChoices
from harness.drafters.head import AnchoredHeadConfig

if TYPE_CHECKING:
    from pathlib import Path

    from harness.models.head import Head
    from harness.models.target import TargetModel


@dataclass(frozen=True)
class DSpark(AnchoredHeadConfig):
    traits = DrafterTraits(has_model=True, in_zoo=False)

    confidence: Confidence = Confidence.row
    """What drafting.min_confidence is compared with: row is the largest probability of a draft row; head is what the
    confidence head of the file predicts of the draft token, survival the product of that up to the draft token."""

    @property
    def head_choices(self) -> HeadChoices:
        return HeadChoices(self.aux_layers, self.anchor, self.confidence)

    def load(self, folder: Path, target: TargetModel) -> Head:
        from harness.drafters.registry import accepted_of
        from harness.models.dspark import load_dspark

        return load_dspark(folder, target, accepted=accepted_of(self), choices=self.head_choices)

    def random(self, target: TargetModel) -> Head:
        from harness.drafters.registry import accepted_of, sizes_of
        from harness.models.random_head import random_dspark

        return random_dspark(target, sizes_of(self, target), accepted_of(self), choices=self.head_choices)
