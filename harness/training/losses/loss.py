"""What a loss is.

Shapes: B rows, P pairs of a row.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from harness.training.unrolled import StepTerms

STEP_DISCOUNT = 0.8
"""Weight of a step of the chain beside the one before, in losses that judge steps one by one: a draft counts only where
those before it are accepted."""


class Loss(ABC):
    """A loss. The fields of its dataclass are settings of the training, by their names."""

    @abstractmethod
    def values(self, terms: Sequence[StepTerms], fraction: float) -> Tensor:
        """[B, P] float32, the loss of each chain.

        Args:
            terms: of the steps of the chains.
            fraction: of the budget that is used up, from 0 to 1.
        """

    def told(self, fraction: float) -> str:
        """What is minimised at a point of the budget, by its name among the settings."""
        return type(self).__name__.lower()

    def feature_weight(self, fraction: float) -> float:
        """Weight of the distance between the features of a drafter that learns those too and the target's."""
        return 0.1


def discounted(values: Iterable[Tensor]) -> Tensor:
    """The sum of what the steps say, each less by STEP_DISCOUNT than the one before."""
    return torch.stack([STEP_DISCOUNT**index * value for index, value in enumerate(values)]).sum(0)
