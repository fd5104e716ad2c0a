"""The draft tokens that are accepted at temperature 1 along the rows' text, negative, and a little of KL.

    - sum over steps s of [product over i < s of min(1, draft / target)(x_i)] * alpha_s

alpha is the sum of min(target, draft), x are the text's own tokens. Over text that was drawn from the target at
temperature 1 the mean is the expected number, exact for sampled drafts under token-by-token verification: each step's
total variation distance counts as often as the step is reached. Over text of lower temperatures, by default two thirds
of a run's rows (0 and 0.6), the target's likelier tokens weigh more, and the mean is not that number. KL keeps a
gradient where no draft is accepted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from harness.training.losses.loss import Loss, discounted
from harness.training.unrolled import StepTerms, accepted


@dataclass(frozen=True)
class Acceptance(Loss):
    late_cross_entropy: float
    """Weight of KL's cross-entropy."""

    def values(self, terms: Sequence[StepTerms], fraction: float) -> Tensor:
        entropy = discounted(term.cross_entropy for term in terms)
        return self.late_cross_entropy * entropy - torch.stack(accepted(terms)).sum(0)

    def feature_weight(self, fraction: float) -> float:
        return 0.0
