"""Draw one token from unnormalised weights with one uniform number: inversion of the cumulative sum."""

from __future__ import annotations

import torch
from torch import Tensor


def choose(weights: Tensor, uniforms: Tensor) -> Tensor:
    """The first token at which the cumulative weight exceeds the given fraction of the whole.

    Args:
        weights: [N, V] float64, not negative; each row has a positive sum.
        uniforms: [N] float64 in (0, 1).

    Returns:
        [N] int64; a token of weight 0 is never chosen.
    """
    cumulative = weights.cumsum(dim=1)
    total = cumulative[:, -1]
    # Rounding may lift u * total to the total itself, which no cumulative weight exceeds.
    target = torch.minimum(uniforms * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cumulative, target[:, None], right=True)[:, 0]
