"""Acceptance probabilities as fractions, and how uniform numbers turn them into a number of accepted tokens."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .proposal import Proposal


class Odds(NamedTuple):
    """Draft token X_i passes with probability min(1, numerator / denominator); it is tested without dividing."""

    numerator: Tensor
    """[R, K] float64."""
    denominator: Tensor
    """[R, K] float64, positive."""

    def passes(self, uniforms: Tensor) -> Tensor:
        """[R, K] bool: u * denominator < numerator."""
        return uniforms * self.denominator < self.numerator

    def probability(self) -> Tensor:
        """[R, K] float64."""
        return (self.numerator / self.denominator).clamp(max=1.0)


def up_to_first_failure(passes: Tensor, proposal: Proposal) -> Tensor:
    """[R, K] bool -> [R] int64: draft tokens before the first that fails."""
    return (passes & proposal.usable).long().cumprod(dim=1).sum(dim=1)


def up_to_last_success(passes: Tensor, proposal: Proposal) -> Tensor:
    """[R, K] bool -> [R] int64: draft tokens up to the last that passes; earlier failures do not matter."""
    index = torch.arange(1, passes.shape[1] + 1, device=passes.device)
    lengths = (passes & proposal.usable) * index
    return torch.cat([torch.zeros_like(proposal.num_usable)[:, None], lengths], dim=1).amax(dim=1)
