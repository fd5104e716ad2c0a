"""Attention of rows to their slots. The specification of harness.models.fused.slot_attention."""

from __future__ import annotations

import torch
from torch import Tensor

from harness.models.fused.checks import check_rows


def slot_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    slots: Tensor,
    starts: Tensor,
    scaling: float,
) -> Tensor:
    """See harness.models.fused.slot_attention. Waits for the device to learn the longest row."""
    check_rows(slots, starts)
    num_rows, num_tokens, num_heads, width = queries.shape
    num_key_heads, capacity = keys.shape[1:3]
    longest = min(int(starts.max()) + num_tokens, capacity)
    grouped = queries.view(num_rows, num_tokens, num_key_heads, num_heads // num_key_heads, width)
    # [R, Hk, L, D]
    row_keys, row_values = (cache[slots, :, :longest].float() for cache in (keys, values))
    positions = starts[:, None] + torch.arange(num_tokens, device=starts.device)
    places = torch.arange(longest, device=starts.device)
    # A weight of 0 does not hide what lies beyond a row's length: 0 times NaN is NaN.
    row_values.masked_fill_((places > positions[:, -1:])[:, None, :, None], 0)
    scores = torch.einsum("rthgd,rhld->rhgtl", grouped.float(), row_keys) * scaling
    scores.masked_fill_((places > positions[..., None])[:, None, None], float("-inf"))
    attended = torch.einsum("rhgtl,rhld->rthgd", scores.softmax(-1), row_values)
    return attended.to(queries.dtype).flatten(2)
