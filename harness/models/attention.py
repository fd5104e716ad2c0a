"""Attention for slots: groups of query heads folded into the query length, so that keys are never repeated.

It does not know the key-value cache: it sees the keys that the cache returned and a mask that says which of them each
query may attend to.

Shapes: B rows, T queries of a row, S keys of a row, H query heads, G query heads of one key head, D width of a head's
key, V of its value.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

SLOTS = "slots"
"""What a configuration of transformers calls it."""


class AttendingMask:
    """In the place of a mask: it knows what each query may see, and attends by itself."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scaling: float | None) -> Tensor:
        """[B, H, T, D], [B, H / G, S, D] and [B, H / G, S, V] -> [B, H, T, V]."""
        raise NotImplementedError


def slots_attention(
    module: torch.nn.Module,
    # [B, H, T, D]
    query: Tensor,
    # [B, H / G, S, D]
    key: Tensor,
    # [B, H / G, S, V]
    value: Tensor,
    # [B or 1, 1, T or G * T, S], additive or bool; None is causal
    attention_mask: Tensor | AttendingMask | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **_unused: object,
) -> tuple[Tensor, None]:
    """Attend, one key head serving a group of query heads.

    Returns [B, T, H, V] and no attention weights. Raises ValueError when there is no mask and the keys are not those
    of the queries, because "causal" would then be a guess.
    """
    # in the engine it is a tensor, and this runs for each layer of each step
    if type(attention_mask) is not Tensor and isinstance(attention_mask, AttendingMask):
        return attention_mask.attend(query, key, value, scaling).transpose(1, 2), None
    num_queries = query.shape[2]
    if attention_mask is None:
        if key.shape[2] != num_queries:
            raise ValueError(
                f"attention without a mask expects as many keys as queries (a whole sequence), found {num_queries} "
                f"queries and {key.shape[2]} keys; pass a view whose mask says what each query may see"
            )
        grouped = query.shape[1] != key.shape[1]
        attended = functional.scaled_dot_product_attention(
            query, key, value, dropout_p=dropout, scale=scaling, is_causal=num_queries > 1, enable_gqa=grouped
        )
        return attended.transpose(1, 2), None
    num_rows, num_heads, num_queries, head_dim = query.shape
    num_key_heads = key.shape[1]
    num_groups = num_heads // num_key_heads
    folded = query.reshape(num_rows, num_key_heads, num_groups * num_queries, head_dim)
    attended = functional.scaled_dot_product_attention(
        folded,
        key,
        value,
        attn_mask=fold_mask(attention_mask, num_groups, num_queries),
        dropout_p=dropout,
        scale=scaling,
    )
    if num_groups == 1:
        return attended.transpose(1, 2), None
    return attended.reshape(num_rows, num_heads, num_queries, -1).transpose(1, 2), None


def fold_mask(
    # [B or 1, 1, T or G * T, S]
    mask: Tensor,
    num_groups: int,
    num_queries: int,
) -> Tensor:
    """Repeat a mask for each query head of a group, unless it is repeated already: [B or 1, 1, G * T, S].

    One query per row needs no repetition: its mask row is broadcast.
    """
    if num_groups == 1 or num_queries == 1 or mask.shape[2] == num_groups * num_queries:
        return mask
    return mask.repeat(1, 1, num_groups, 1)
