"""A Llama layer in float32 on a CPU, operation by operation: bit for bit what its modules in transformers compute.

Small models on a CPU spend more time between operations than in them. Here there are no calls of modules, and a
rotation takes 4 operations instead of 7. It does not know the fused operations, which round differently.

Shapes: B rows, T tokens of a row, H hidden size, D width of a head.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from harness.models.attention import slots_attention
from harness.models.decoder_layer import View, is_of
from harness.models.llama_config import LlamaConfig
from harness.models.llama_layers import GatedMLP, LlamaAttention, LlamaDecoderLayer, LlamaRMSNorm
from harness.models.weight_layout import BlockedLinear, product

LLAMA = LlamaConfig.model_type
FEWEST_ROWS = 4
"""Rows from which on, on most processors, a product with a weight sums each row as it does among more of them; fewer
take other code in the linear algebra libraries."""


class Rotation(NamedTuple):
    """The angles of a forward, [B, 1, T, D] each."""

    cos: Tensor
    sin: Tensor
    """Negative in the first half of D, so that rotating halves needs no sign."""


def serves(layer: Any, states: Tensor, view: View | None) -> bool:
    """Whether a layer can run here: it `is_llama`, it attends through a cache, and its states are `is_exact`."""
    return view is not None and is_exact(states) and is_llama(layer)


def is_llama(layer: Any) -> bool:
    """Whether a layer and its two parts are a Llama's, of our classes or of transformers' with the same results.

    Norms and projections may be any: those of other classes are called.
    """
    return (
        is_of(layer, LLAMA, LlamaDecoderLayer.__name__)
        and is_of(layer.self_attn, LLAMA, LlamaAttention.__name__)
        and is_of(layer.mlp, LLAMA, GatedMLP.__name__, "LlamaMLP")
    )


def rounds_alike(layer: Any, states: Tensor, view: View | None) -> bool:
    """Whether one token of each row may go through a layer without the others and come out the same: on most processors
    bit for bit, on all but for the rounding of a sum.

    Several threads divide products of few rows in other ways than those of many.
    """
    return len(states) >= FEWEST_ROWS and torch.get_num_threads() == 1 and serves(layer, states, view)


def is_exact(states: Tensor) -> bool:
    """Whether torch's RMS norm rounds these states as the module of transformers does."""
    return states.dtype is torch.float32 and states.device.type == "cpu"


def rotation(cos: Tensor, sin: Tensor) -> Rotation:
    """From what the rotary module of transformers gives, [B, T, D] each."""
    first, second = sin.chunk(2, dim=-1)
    return Rotation(cos.unsqueeze(1), torch.cat((first.neg(), second), dim=-1).unsqueeze(1))


def decoder_layer(
    layer: Any,
    # [B, T, H]
    states: Tensor,
    angles: Rotation,
    mask: Tensor,
    view: View,
) -> Tensor:
    """The whole layer: [B, T, H] -> [B, T, H]; `mask` as for slots_attention."""
    attended = attend(layer.self_attn, norm(layer.input_layernorm, states), angles, mask, view)
    return add_feed_forward(layer, attended, states)


def attend(
    attention: Any,
    # [B, T, H or 2 H]
    states: Tensor,
    angles: Rotation,
    mask: Tensor,
    view: View,
    wanted: Tensor | None = None,
) -> Tensor:
    """The self-attention without its norm and residual: [B, T, H], or [B, 1, H] of the `wanted` (see `only`)."""
    shape = (*states.shape[:2], -1, attention.head_dim)
    query, key, value = (
        _linear(projection, states).view(shape).transpose(1, 2)
        for projection in (attention.q_proj, attention.k_proj, attention.v_proj)
    )
    keys, values = view.update(_turned(key, angles), value, attention.layer_idx)
    attended, _ = slots_attention(attention, _turned(query, angles), keys, values, mask, attention.scaling)
    return _linear(attention.o_proj, only(attended.reshape(*states.shape[:2], -1), wanted))


def add_feed_forward(layer: Any, attended: Tensor, residual: Tensor) -> Tensor:
    """What follows attention: its residual, and the feed-forward part with its own; [B, T, H]."""
    states, mlp = residual + attended, layer.mlp
    normed = norm(layer.post_attention_layernorm, states)
    gated, activate = _linear(mlp.gate_proj, normed), mlp.act_fn
    gated = functional.silu(gated, inplace=True) if type(activate) is nn.SiLU else activate(gated)
    gated *= _linear(mlp.up_proj, normed)
    added = _linear(mlp.down_proj, gated)
    added += states
    return added


def only(
    # [B, T, H]
    states: Tensor,
    # [B] int64
    wanted: Tensor | None,
) -> Tensor:
    """[B, 1, H] the state of one token of each row, by its number; all of them if None."""
    return states if wanted is None else states.flatten(0, 1).index_select(0, wanted).unsqueeze(1)


def norm(module: Any, states: Tensor) -> Tensor:
    """An RMS norm."""
    # the class of our own first: comparing with it is cheaper
    is_known = type(module) is LlamaRMSNorm or is_of(module, LLAMA, LlamaRMSNorm.__name__)
    if not is_known or not is_exact(states):
        return module(states)
    return torch.rms_norm(states, (states.shape[-1],), module.weight, module.variance_epsilon)


def _linear(module: Any, states: Tensor) -> Tensor:
    """A projection; one of another class, such as an adapter, does more than its weight and bias say."""
    if type(module) is nn.Linear:
        return functional.linear(states, module.weight, module.bias)
    if type(module) is BlockedLinear:
        return product(states, module.weight, module.bias)
    return module(states)


def _turned(heads: Tensor, angles: Rotation) -> Tensor:
    """Queries or keys, [B, heads, T, D], turned by the angles of their positions."""
    return (heads * angles.cos).add_(heads.roll(heads.shape[-1] // 2, -1).mul_(angles.sin))
