"""Rotate queries and keys, store keys and values. The specification of harness.models.fused.rotate_and_store."""

from __future__ import annotations

import torch
from torch import Tensor

from harness.models.fused.checks import check_rows


def rotate_and_store(
    qkv: Tensor,
    table: Tensor,
    keys: Tensor,
    values: Tensor,
    slots: Tensor,
    starts: Tensor,
    query_norm: Tensor | None = None,
    key_norm: Tensor | None = None,
    eps: float = 0.0,
) -> Tensor:
    """See harness.models.fused.rotate_and_store. Waits for the device to leave out positions beyond the capacity."""
    check_rows(slots, starts)
    _, num_key_heads, capacity, width = keys.shape
    if qkv.dim() == 3:
        qkv = sum(qkv[1:], qkv[0]).to(keys.dtype)
    num_rows, num_tokens = slots.shape[0], qkv.shape[0] // slots.shape[0]
    # [R, T, Hq + 2 Hk, D]
    heads = qkv.view(num_rows, num_tokens, -1, width)
    num_query_heads = heads.shape[2] - 2 * num_key_heads
    query, key, value = heads.split((num_query_heads, num_key_heads, num_key_heads), dim=2)
    positions = starts[:, None] + torch.arange(num_tokens, device=starts.device)
    # [R, T, 1, D / 2]
    cosine, sine = table[positions.clamp_max(table.shape[0] - 1)].unsqueeze(2).chunk(2, dim=-1)
    stored = positions < capacity
    row_slots = slots[:, None].expand(-1, num_tokens)[stored]
    keys[row_slots, :, positions[stored]] = _rotated(key, key_norm, eps, cosine, sine)[stored]
    values[row_slots, :, positions[stored]] = value[stored]
    return _rotated(query, query_norm, eps, cosine, sine)


def _rotated(heads: Tensor, norm: Tensor | None, eps: float, cosine: Tensor, sine: Tensor) -> Tensor:
    """[R, T, heads, D], rounded once, at the end."""
    wide = heads.float()
    if norm is not None:
        wide = norm.float() * wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    first, second = wide.chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1).to(heads.dtype)
