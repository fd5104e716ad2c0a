"""A decoder layer of transformers run through the fused operations: what targets and draft heads call.

    linear (queries, keys, values) -> rotate_and_store -> slot_attention -> linear
    gated_linear (gate, up) -> linear                                                add_rms_norm before each

A product may be left as shares, [P, R, T, H] float32, where the operation that takes it sums them: rotate_and_store and
add_rms_norm do. Latent attention and experts have ways of their own: see latent_layer and expert_layer.

It expects a packed layer (pack_layer) without an obstacle (fusion_obstacle). Each function takes the operations of the
states' device unless others are given.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from harness.models.fused.expert_layer import expert_feed_forward
from harness.models.fused.fuse import gate_and_up, packed, query_key_value
from harness.models.fused.latent_layer import attend_to_latents
from harness.models.fused.operations import Operations, operations_for
from harness.models.latent_attention import LatentAttention


class LayerOutput(NamedTuple):
    """What a decoder layer hands on; the state that it leaves is states + residual, which the next norm adds."""

    states: Tensor
    """[R, T, H] what the feed-forward part returned, or its shares, [P, R, T, H] float32."""
    residual: Tensor
    """[R, T, H] what that is to be added to."""
    entering: Tensor
    """[R, T, H] the state that entered the layer."""


def decoder_layer(
    layer: Any,
    states: Tensor,
    residual: Tensor | None,
    table: Tensor,
    keys: Tensor,
    values: Tensor,
    slots: Tensor,
    starts: Tensor,
    operations: Operations | None = None,
) -> LayerOutput:
    """A whole layer.

    Args:
        layer: packed; has input_layernorm and post_attention_layernorm.
        states: [R, T, H], without the residual; or shares of it.
        residual: [R, T, H] to be added to the states; None before the first layer.
        table, keys, values, slots, starts: see attend.
    """
    normed, entering = add_norm(layer.input_layernorm, states, residual, operations)
    attended = attend(layer, normed, table, keys, values, slots, starts, operations)
    normed, residual = add_norm(layer.post_attention_layernorm, attended, entering, operations)
    return LayerOutput(feed_forward(layer.mlp, normed, operations, splits=True), residual, entering)


def attend(
    layer: Any,
    states: Tensor,
    table: Tensor,
    keys: Tensor,
    values: Tensor,
    slots: Tensor,
    starts: Tensor,
    operations: Operations | None = None,
) -> Tensor:
    """The self-attention of a layer, without its norm and residual.

    Args:
        layer: its self_attn is packed.
        states: [R, T, H], or as wide as its projections read: [R, T, 2 H] of an EAGLE-3 head.
        table: [C', D] float32 of rope_table, C' at least C.
        keys, values: [S, Hk, C, D], the layer's part of a slot cache; the rows' keys and values are written there. Of
            latent attention the keys are [S, 1, C, L + P], and the values are not looked at.
        slots: [R] int64. starts: [R] int64, the position of each row's first token.

    Returns:
        [R, T, H], or its shares, [P, R, T, H] float32; add_norm takes both.
    """
    attention, operations = layer.self_attn, operations or operations_for(states.device)
    if isinstance(attention, LatentAttention):
        return attend_to_latents(attention, states, table, keys, slots, starts, operations.name)
    qkv = operations.linear(states.flatten(0, 1), *packed(query_key_value(attention)), splits=True)
    norms: dict[str, Any] = {}
    if hasattr(attention, "q_norm"):
        query_norm, key_norm = attention.q_norm, attention.k_norm
        norms = {"query_norm": query_norm.weight, "key_norm": key_norm.weight, "eps": query_norm.variance_epsilon}
    queries = operations.rotate_and_store(qkv, table, keys, values, slots, starts, **norms)
    attended = operations.slot_attention(queries, keys, values, slots, starts, attention.scaling)
    return operations.linear(attended, attention.o_proj.weight, attention.o_proj.bias, splits=True)


def feed_forward(mlp: Any, states: Tensor, operations: Operations | None = None, splits: bool = False) -> Tensor:
    """The feed-forward part of a layer, packed, without its norm and residual: [R, T, H] -> [R, T, H].

    splits: whether its shares may be returned, [P, R, T, H] float32.
    """
    operations = operations or operations_for(states.device)
    if hasattr(mlp, "experts"):
        return expert_feed_forward(mlp, states.flatten(0, 1), operations.name).view(states.shape)
    activated = operations.gated_linear(states, *packed(gate_and_up(mlp)))
    return operations.linear(activated, mlp.down_proj.weight, mlp.down_proj.bias, splits)


def add_norm(
    norm: Any, states: Tensor, residual: Tensor | None = None, operations: Operations | None = None
) -> tuple[Tensor, Tensor]:
    """An RMS norm of transformers over states + residual: (normed, the sum), [R, T, H] each.

    states: [R, T, H], or its shares, [P, R, T, H] float32. residual: [R, T, H].
    """
    operations = operations or operations_for(states.device)
    flat = None if residual is None else residual.flatten(0, 1)
    normed, total = operations.add_rms_norm(states.flatten(-3, -2), flat, norm.weight, norm.variance_epsilon)
    return normed.view(states.shape[-3:]), total.view(states.shape[-3:])
