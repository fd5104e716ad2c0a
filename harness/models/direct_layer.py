"""A Llama layer in float32 on a CPU, operation by operation: bit for bit what its modules in transformers compute.

Small models on a CPU spend more time between operations than in them. Here there are no calls of modules, and a
rotation takes 4 operations instead of 7. It does not know the fused operations, which round differently.

Shapes: B rows, T tokens of a row, H hidden size, D width of a head.
"""

from __future__ import annotations

from collections.abc import Iterator
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


def joined(network: nn.Module) -> Iterator[tuple[nn.Module, tuple[str, ...]]]:
    """The projections of the same states in layers that can run here, see harness.models.weight_layout."""
    layer: Any
    for layer in network.modules():
        if is_llama(layer) and layer.post_attention_layernorm.weight.dtype is torch.float32:
            yield layer.self_attn, ("q_proj", "k_proj", "v_proj")
            yield layer.mlp, ("gate_proj", "up_proj")


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
    # attributes of modules that are modules take a call of Python each
    parts, shape = attention._modules, (*states.shape[:2], -1, attention.head_dim)
    joint = attention.__dict__.get("joint")
    joined = None if joint is None else joint(attention, states)
    if joined is None:
        query, key, value = (
            _linear(projection, states).view(shape).transpose(1, 2)
            for projection in (parts["q_proj"], parts["k_proj"], parts["v_proj"])
        )
        query, key = _turned(query, angles), _turned(key, angles)
    else:
        heads = joined.view(shape).transpose(1, 2)
        num_key_heads = heads.shape[1] // (attention.num_key_value_groups + 2)
        turned = _turned(heads[:, :-num_key_heads], angles)
        query, key, value = turned[:, :-num_key_heads], turned[:, -num_key_heads:], heads[:, -num_key_heads:]
    keys, values = view.update(key, value, attention.layer_idx)
    attended, _ = slots_attention(attention, query, keys, values, mask, attention.scaling)
    return _linear(parts["o_proj"], only(attended.reshape(*states.shape[:2], -1), wanted))


def add_feed_forward(layer: Any, attended: Tensor, residual: Tensor) -> Tensor:
    """What follows attention: its residual, and the feed-forward part with its own; [B, T, H]."""
    states, mlp = residual + attended, layer.mlp
    normed = norm(layer.post_attention_layernorm, states)
    parts, joint = mlp._modules, mlp.__dict__.get("joint")
    activate = parts["act_fn"]
    joined = None if joint is None else joint(mlp, normed)
    gated, up = (_linear(parts["gate_proj"], normed), None) if joined is None else joined.chunk(2, dim=-1)
    # parts of a joint product have gaps between their rows
    gated = functional.silu(gated, inplace=joined is None) if type(activate) is nn.SiLU else activate(gated)
    gated *= _linear(parts["up_proj"], normed) if up is None else up
    added = _linear(parts["down_proj"], gated)
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
