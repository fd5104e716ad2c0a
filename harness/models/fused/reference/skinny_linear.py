"""Linear projections, and one with a gate behind it. The specification of harness.models.fused.skinny_linear."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from harness.models.fused.reference.gated_activation import silu_mul


def linear(states: Tensor, weight: Tensor, bias: Tensor | None = None, splits: bool = False) -> Tensor:
    """See harness.models.fused.skinny_linear; this one never returns shares."""
    return functional.linear(states, weight, bias)


def gated_linear(states: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """See harness.models.fused.skinny_linear."""
    return silu_mul(functional.linear(states, weight, bias))
