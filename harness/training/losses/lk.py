"""KL where the draft is far from the target, total variation distance (TV) where it is near.

    w KL + (1 - w) TV,    w = exp(-3 alpha),    TV = 1 - alpha,    alpha = sum of min(target, draft)

alpha is the acceptance rate at temperature 1 of this step; w takes no gradient. TV alone has hardly a gradient where
alpha is small. Source: LK losses, Samarin et al. (2026), arXiv 2602.23881.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from harness.training.losses.loss import Loss, discounted
from harness.training.unrolled import StepTerms

_DECAY = 3.0


@dataclass(frozen=True)
class LK(Loss):
    def values(self, terms: Sequence[StepTerms], fraction: float) -> Tensor:
        return discounted(_of_step(term) for term in terms)


def _of_step(term: StepTerms) -> Tensor:
    weight = (-_DECAY * term.overlap.detach()).exp()
    return weight * term.cross_entropy + (1 - weight) * (1 - term.overlap)
