"""Add a residual and normalize. The specification of harness.models.fused.add_rms_norm."""

from __future__ import annotations

import torch
from torch import Tensor


def add_rms_norm(states: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """See harness.models.fused.add_rms_norm; the roundings are those of LlamaRMSNorm in transformers."""
    total = states if states.dim() == 2 else sum(states[1:], states[0]).to(weight.dtype)
    total = total if residual is None else total + residual
    wide = total.float()
    scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return weight * scaled.to(total.dtype), total
