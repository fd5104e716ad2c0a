"""How our own loops run decoder layers: as transformers has them, on a CPU directly, or through the fused operations.

Which of the two is said by the view of the cache: one that holds a table of rotations is for fused layers. Without a
view, attention is over the given tokens alone, and layers run as transformers has them.

Shapes: B rows, T tokens of a row, H hidden size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeGuard

import torch
from torch import Tensor
from torch.nn import functional

from harness.models import direct_layer as direct
from harness.models.attention import AttendingMask, fold_mask
from harness.models.decoder_layer import FusedView, View
from harness.models.fused import layer as fused
from harness.models.fused.checks import written
from harness.models.fused.operations import operations_for
from harness.models.weight_layout import BlockedWeight, product


class LayersOutput(NamedTuple):
    """What a stack of layers leaves."""

    last: Tensor
    """[B, T, H] the state after the last layer."""
    normed: Tensor
    """[B, T, H] that state after the final norm."""
    entering: dict[int, Tensor]
    """[B, T, H] each: the state entering each asked layer."""


def run_layers(
    layers: Any,
    final_norm: Any,
    rotary: Any,
    # [B, T, H]
    states: Tensor,
    # [B, T] int64
    positions: Tensor,
    view: View | None,
    asked: tuple[int, ...] = (),
    first: int = 0,
) -> LayersOutput:
    """Run a stack of layers and the norm after it; `first` is the number of its first layer in the cache."""
    if is_fused(view):
        return _run_fused_layers(layers, final_norm, states, view, asked, first)
    run = _unfused(layers[0], rotary, states, positions, view)
    entering = {}
    for index, layer in enumerate(layers, first):
        if index in asked:
            entering[index] = states
        states = run(layer, states)
    return LayersOutput(states, norm(final_norm, states, view), entering)


def _unfused(
    layer: Any, rotary: Any, states: Tensor, positions: Tensor, view: View | None
) -> Callable[[Any, Tensor], Tensor]:
    """How layers like this one run on [B, T, H] states at these positions, without the fused operations."""
    cos_sin = rotary(states, positions)
    inputs = _attention_inputs(view, layer, positions.shape[1])
    if view is None or not direct.serves(layer, states, view):
        return lambda layer, states: layer(states, position_embeddings=cos_sin, **inputs)
    angles, mask = direct.rotation(*cos_sin), inputs["attention_mask"]
    return lambda layer, states: direct.decoder_layer(layer, states, angles, mask, view)


def _run_fused_layers(
    layers: Any, final_norm: Any, states: Tensor, view: FusedView, asked: tuple[int, ...], first: int
) -> LayersOutput:
    residual, entering = None, {}
    for index, layer in enumerate(layers, first):
        table, keys, values = _places(view, index)
        output = fused.decoder_layer(
            layer,
            states,
            residual,
            table,
            keys,
            values,
            view.slots,
            view.starts,
            tree=view.tree_rows,
            groups=view.grouped_rows,
        )
        if index in asked:
            entering[index] = output.entering
        states, residual = output.states, output.residual
    normed, last = fused.add_norm(final_norm, states, residual)
    return LayersOutput(last, normed, entering)


def run_layer(
    layer: Any,
    final_norm: Any,
    rotary: Any,
    states: Tensor,
    positions: Tensor,
    view: View | None,
    wanted: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """A whole layer of a head, the first of its cache, and the norm after it: (states, normed), [B, T, H] each.

    For `wanted` see `attend`.
    """
    if wanted is not None or is_fused(view):
        attended = attend(layer, rotary, norm(layer.input_layernorm, states, view), positions, view, wanted)
        return add_feed_forward_and_norm(layer, final_norm, attended, direct.only(states, wanted), view)
    states = _unfused(layer, rotary, states, positions, view)(layer, states)
    return states, direct.norm(final_norm, states)


def attend(
    layer: Any,
    rotary: Any,
    # [B, T, H or 2 H]
    states: Tensor,
    positions: Tensor,
    view: View | None,
    wanted: Tensor | None = None,
) -> Tensor:
    """The self-attention of a head's layer, without its norm and residual: [B, T, H], for add_feed_forward.

    With `wanted`, [B] int64, [B, 1, H]: of one token of each row, by its number; for layers that `rounds_alike`
    (direct_layer) alone.

    Through the fused operations it may be left as shares that are to be summed, [P, B, T, H] float32.
    """
    if is_fused(view):
        return _fused_attention(layer, states, view)
    cos_sin = rotary(states, positions)
    inputs = _attention_inputs(view, layer, positions.shape[1])
    if view is not None and direct.serves(layer, states, view):
        angles, mask = direct.rotation(*cos_sin), inputs["attention_mask"]
        return direct.attend(layer.self_attn, states, angles, mask, view, wanted)
    assert wanted is None, "such layers run all tokens"
    return layer.self_attn(states, position_embeddings=cos_sin, **inputs)[0]


def join_embedded(
    token_ids: Tensor,
    embed_weight: Tensor,
    features: Tensor,
    view: View | None,
    norms: tuple[Any, Any] | None = None,
    positions: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """What a head reads: the embeddings of tokens beside their features, [B, T, 2 H]; and the features, [B, T, H].

    Args:
        token_ids: [B, T] int64. embed_weight: [V, H]. features: [B, T, H].
        norms: RMS norms of transformers that the embeddings and the features go through first.
        positions: [B, T] int64; an embedding at position 0 is taken as 0. None for no such.
    """
    if is_fused(view):
        given = None if norms is None else tuple((norm.weight, norm.variance_epsilon) for norm in norms)
        flat = None if positions is None else positions.flatten()
        operation = operations_for(features.device).join_embedded
        joined, normed = operation(token_ids.flatten(), embed_weight, features.flatten(0, 1), given, flat)
        return joined.view(*token_ids.shape, joined.shape[-1]), normed.view(features.shape)
    states = embedded(token_ids, embed_weight)
    if positions is not None:
        states = states.masked_fill(positions[..., None] == 0, 0)
    if norms is not None:
        states, features = direct.norm(norms[0], states), direct.norm(norms[1], features)
    return torch.cat((states, features), dim=-1), features


def add_feed_forward(layer: Any, attended: Tensor, residual: Tensor, view: View | None) -> Tensor:
    """What follows attention in a layer: its residual, and the feed-forward part with its own; [B, T, H]."""
    if is_fused(view):
        normed, total = fused.add_norm(layer.post_attention_layernorm, attended, residual)
        return fused.add(fused.feed_forward(layer.mlp, normed, splits=True), total)
    if direct.serves(layer, residual, view):
        return direct.add_feed_forward(layer, attended, residual)
    states = residual + attended
    return states + layer.mlp(layer.post_attention_layernorm(states))


def add_feed_forward_and_norm(
    layer: Any, final_norm: Any, attended: Tensor, residual: Tensor, view: View | None
) -> tuple[Tensor, Tensor]:
    """add_feed_forward, and a norm of its result: (states, normed), [B, T, H] each."""
    if is_fused(view):
        normed, total = fused.add_norm(layer.post_attention_layernorm, attended, residual)
        normed, states = fused.add_norm(final_norm, fused.feed_forward(layer.mlp, normed, splits=True), total)
        return states, normed
    states = add_feed_forward(layer, attended, residual, view)
    return states, direct.norm(final_norm, states)


def norm(module: Any, states: Tensor, view: View | None) -> Tensor:
    """An RMS norm of transformers: [B, T, H] -> [B, T, H]."""
    if is_fused(view):
        return fused.add_norm(module, states)[0]
    return direct.norm(module, states)


def project(module: Any, states: Tensor, view: View | None) -> Tensor:
    """A linear module: [B, T, IN] -> [B, T, OUT]."""
    return linear(states, module.weight, module.bias, is_fused(view))


def linear(states: Tensor, weight: Tensor, bias: Tensor | None, fused_too: bool, out: Tensor | None = None) -> Tensor:
    """A linear projection, [..., IN] -> [..., OUT]; through the fused operations if the layers before it are.

    out: of states [N, IN]: [N, OUT] of their type to write to and to return, whose rows have no gaps. None for new
    memory.
    """
    if fused_too:
        return operations_for(states.device).linear(states, weight, bias, out=out)
    # most weights have no blocks, and a call more of Python for each product would be felt
    result = (product if type(weight) is BlockedWeight else functional.linear)(states, weight, bias)
    return result if out is None else written(result, out)


def embedded(token_ids: Tensor, weight: Tensor) -> Tensor:
    """[...] int64 ids, [V, H] -> [..., H].

    On a GPU by indexing: torch's embedding of 16 tokens or fewer takes 12 us there, this 2 (an H200, rows of 8 KiB).
    """
    return weight[token_ids] if weight.is_cuda else functional.embedding(token_ids, weight)


def is_fused(view: View | None) -> TypeGuard[FusedView]:
    """Whether layers that attend through a view run through the fused operations."""
    return view is not None and view.rope_table is not None


def _fused_attention(layer: Any, states: Tensor, view: FusedView) -> Tensor:
    """That of a head's layer, the first of its cache, as `attend` gives it."""
    table, keys, values = _places(view, 0)
    slots, starts = view.slots, view.starts
    return fused.attend(
        layer, states, table, keys, values, slots, starts, tree=view.tree_rows, groups=view.grouped_rows
    )


def _places(view: FusedView, layer_idx: int) -> tuple[Tensor, Tensor, Tensor]:
    """(table of rotations, keys, values) of a layer."""
    assert view.rope_table is not None
    keys, values = view.layer(layer_idx)
    return view.rope_table, keys, values


def _attention_inputs(view: View | None, layer: Any, num_tokens: int) -> dict[str, Any]:
    """What a layer of transformers needs to attend through a view: that, and its mask folded once for all layers."""
    if view is None or view.mask is None:
        return {"attention_mask": None, "past_key_values": view}
    mask: Tensor | AttendingMask = view.mask
    if type(mask) is Tensor or not isinstance(mask, AttendingMask):
        mask = fold_mask(mask, layer.self_attn.num_key_value_groups, num_tokens)
    return {"attention_mask": mask, "past_key_values": view}
