"""Masks over slots, registered with transformers: the model's own rule for two positions, applied where queries lie.

transformers composes a function of indices from what a model asks for (causal, window, chunk, images); all that is
ours is which positions it is asked about.

Shapes: B rows, T tokens of a row, L keys.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface

from harness.models.general.attention import attend
from harness.models.general.in_place import window_of
from harness.models.general.view import GeneralView

INTERFACE = "rejection_lab_general"
"""What a configuration calls attention over slots through the interface."""
OWN_ATTENTION = "rejection_lab_masks"
"""What it calls masks over slots for models whose attention is code of their own, and takes additive masks."""


def seen_keys(
    *, q_offset: GeneralView | int, mask_function: Callable[..., Tensor], kv_length: int, **given: Any
) -> Tensor:
    """[B, 1, T, L] bool: which keys each query sees, or rows in place; called by transformers.

    q_offset: what `get_query_offset` gave, or a number where a forward has no cache.
    """
    if isinstance(q_offset, GeneralView):
        if q_offset.is_in_place:
            return q_offset.rows_in_place(window_of(mask_function))
        positions, keys, sees = q_offset.positions, q_offset.key_positions, q_offset.sees
    else:
        device = given["device"]
        positions = torch.arange(given["q_length"], device=device).expand(given["batch_size"], -1) + q_offset
        keys, sees = torch.arange(kv_length, device=device)[None, None, None, :], None
    rows = torch.arange(positions.shape[0], device=positions.device)[:, None, None, None]
    heads = torch.zeros(1, 1, 1, 1, dtype=torch.int64, device=positions.device)
    seen = mask_function(rows, heads, positions[:, None, :, None], keys)
    if sees is not None:
        seen = seen & sees
    return seen.expand(positions.shape[0], 1, positions.shape[1], kv_length)


def additive_mask(*, dtype: torch.dtype = torch.float32, **given: Any) -> Tensor:
    """[B, 1, T, L]: 0 where a query sees a key, else the lowest number of the dtype."""
    seen = seen_keys(**given)
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, torch.finfo(dtype).min)


@cache
def register() -> None:
    """Let transformers find attention and masks over slots by their names."""
    AttentionInterface.register(INTERFACE, attend)
    AttentionMaskInterface.register(INTERFACE, seen_keys)
    AttentionMaskInterface.register(OWN_ATTENTION, additive_mask)
