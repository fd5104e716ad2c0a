"""The gate of a feed-forward layer. The specification of harness.models.fused.gated_activation."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional


def silu_mul(gate_up: Tensor) -> Tensor:
    """See harness.models.fused.gated_activation; the roundings are those of LlamaMLP in transformers."""
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.silu(gate) * up
