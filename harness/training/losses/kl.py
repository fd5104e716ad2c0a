"""Kullback-Leibler divergence of the draft's distribution from the target's, as soft cross-entropy.

Both have the same gradient. It bounds the acceptance rate from below (Pinsker), and does not maximise it.
Source: DistillSpec, Zhou et al. (2023), arXiv 2310.08461; EAGLE-3, Li et al. (2025), arXiv 2503.01840.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from harness.training.losses.loss import Loss, discounted
from harness.training.unrolled import StepTerms


@dataclass(frozen=True)
class KL(Loss):
    def values(self, terms: Sequence[StepTerms], fraction: float) -> Tensor:
        return discounted(term.cross_entropy for term in terms)
