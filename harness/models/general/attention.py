"""Attention over keys of slots, in the form in which modeling code of transformers calls it.

    softmax(cap(scale * q k^T + bias) + mask, with a sink beside the keys) v

The query heads of a group are folded into the query length, so that no key is copied for them. Soft caps, sinks and
biases are computed here; a keyword that is not known is refused, since it may ask for something that the model leaves
to its attention function.

Shapes: B rows, T tokens of a row, H query heads, K key heads, G = H / K heads of a group, L keys, D width of a head.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from harness.models.general.in_place import NotInPlaceError, attend_in_place, is_rows_in_place

_HARMLESS = frozenset(
    (
        *("sliding_window", "is_causal", "position_ids", "use_cache", "return_dict", "output_attentions"),
        *("output_hidden_states", "output_router_logits"),
    )
)
"""Keywords that the mask has taken in already, or that ask for outputs alone."""


def attend(
    module: Any,
    # [B, H, T, D]
    query: Tensor,
    # [B, K, L, D]
    key: Tensor,
    # [B, K, L, D]
    value: Tensor,
    # [B, 1 or H, T, L] bool, or additive; or rows in place, of all slots' keys and values
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    # [H]
    s_aux: Tensor | None = None,
    # [H]
    sinks: Tensor | None = None,
    # [B or 1, H, T, L]
    position_bias: Tensor | None = None,
    # [B, T, N] keys that sparse attention chose
    indices: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """[B, T, H, D] attended values, and no weights.

    Raises:
        TypeError: a keyword is not known, or there is no mask, or layers in place ask for more than a softmax.
    """
    unknown = sorted(name for name, given in others.items() if given is not None and name not in _HARMLESS)
    if unknown:
        raise TypeError(f"expected keywords that attention over slots computes, found {', '.join(unknown)}")
    if attention_mask is None:
        raise TypeError("expected a mask of the keys that each query sees, found none")
    sink = s_aux if sinks is None else sinks
    if is_rows_in_place(attention_mask):
        asked = {"position_bias": position_bias, "indices": indices}
        found = [name for name, given in asked.items() if given is not None]
        if found:
            raise NotInPlaceError(f"expected a softmax over all keys that a query sees, found {', '.join(found)}")
        return attend_in_place(query, key, value, attention_mask, scaling, sink, softcap), None
    if indices is not None:
        chosen = torch.zeros(*indices.shape[:2], key.shape[2], dtype=torch.bool, device=key.device)
        attention_mask = attention_mask & chosen.scatter_(-1, indices.long(), True).unsqueeze(1)
    num_rows, num_heads, num_tokens, width = query.shape
    num_groups = key.shape[1]
    group = num_heads // num_groups
    folded = query.reshape(num_rows, num_groups, group * num_tokens, width)
    mask = _folded(attention_mask, num_groups, group, num_tokens)
    if softcap is None and sink is None and position_bias is None:
        attended = functional.scaled_dot_product_attention(folded, key, value, attn_mask=mask, scale=scaling)
    else:
        scores = folded @ key.transpose(2, 3) * (width**-0.5 if scaling is None else scaling)
        if softcap is not None:
            scores = torch.tanh(scores / softcap) * softcap
        if position_bias is not None:
            scores = scores + position_bias.reshape(position_bias.shape[0], num_groups, group * num_tokens, -1)
        scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype is torch.bool else scores + mask
        weights = _softmax(scores.float(), sink, group, num_tokens)
        attended = weights.to(value.dtype) @ value
    attended = attended.reshape(num_rows, num_heads, num_tokens, value.shape[-1])
    return attended.transpose(1, 2).contiguous(), None


def _folded(mask: Tensor, num_groups: int, group: int, num_tokens: int) -> Tensor:
    """A mask of folded heads, [B, 1 or K, G * T, L]."""
    if mask.shape[1] != 1:
        return mask.reshape(mask.shape[0], num_groups, group * num_tokens, -1)
    # of a single token the rows of a group are alike, and broadcast
    return mask.repeat(1, 1, group, 1) if group > 1 and num_tokens > 1 else mask


def _softmax(scores: Tensor, sink: Tensor | None, group: int, num_tokens: int) -> Tensor:
    """[B, K, G * T, L] weights; a sink takes a share that goes nowhere."""
    if sink is None:
        return scores.softmax(-1)
    num_rows, num_groups = scores.shape[:2]
    of_head = sink.float().view(1, num_groups, group, 1, 1).expand(num_rows, -1, -1, num_tokens, 1)
    beside = of_head.reshape(num_rows, num_groups, group * num_tokens, 1)
    return torch.cat([scores, beside], -1).softmax(-1)[..., :-1]
