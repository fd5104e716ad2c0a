"""KL first; from 55 % of the budget on, accepted draft tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from harness.training.losses.acceptance import Acceptance
from harness.training.losses.kl import KL
from harness.training.losses.loss import Loss
from harness.training.unrolled import StepTerms

SWITCH_AT = 0.55
"""Share of the budget."""


@dataclass(frozen=True)
class KLThenAcceptance(Loss):
    late_cross_entropy: float
    """Weight of KL's cross-entropy after the switch."""

    def _now(self, fraction: float) -> Loss:
        return KL() if fraction < SWITCH_AT else Acceptance(self.late_cross_entropy)

    def values(self, terms: Sequence[StepTerms], fraction: float) -> Tensor:
        return self._now(fraction).values(terms, fraction)

    def told(self, fraction: float) -> str:
        return self._now(fraction).told(fraction)

    def feature_weight(self, fraction: float) -> float:
        return self._now(fraction).feature_weight(fraction)
