"""A decoder layer of transformers run through the fused operations: what targets and draft heads call.

    attention        linear (queries, keys, values) -> rotate_and_store -> slot_attention -> linear
    latent           linear (latents of queries, of keys and values) -> norm_latents -> linear -> absorb_queries
                     -> latent_attention -> expand_values -> linear
    feed-forward     gated_linear (gate, up) -> linear
    with experts     route_tokens -> expert_gate_up -> expert_down -> sum_experts

An add_rms_norm stands before each, and join_embedded makes what the layer of an EAGLE, EAGLE-3 or MTP head reads. A
product may be left as shares, [P, R, T, H] float32, where the operation that takes it sums them: rotate_and_store,
add_rms_norm and add_shares do. Forwards of more tokens than MAX_TOKENS, prompts and rounds of many slots, run experts
as transformers has them: the routing kernel holds no more, and the more tokens, the less the products are bound by
reading weights.

It expects a packed layer (pack_layer) without an obstacle (fusion_obstacle). Each function takes the operations of the
states' device unless others are given.

Shapes: R rows, T tokens of a row, N tokens, H hidden size, L width of a latent, P rotated width, S slots, C positions
of a slot.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from harness.models.fused.fuse import gate_and_up, latent_projections, packed, query_key_value
from harness.models.fused.operations import Operations, named_operations, operations_for
from harness.models.fused.routing import MAX_TOKENS, Choice
from harness.models.fused.row_groups import GroupedRows
from harness.models.fused.tree_rows import TreeRows
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
    tree: TreeRows | None = None,
    groups: GroupedRows | None = None,
) -> LayerOutput:
    """A whole layer.

    Args:
        layer: packed; has input_layernorm and post_attention_layernorm.
        states: [R, T, H], without the residual; or shares of it.
        residual: [R, T, H] to be added to the states; None before the first layer.
        table, keys, values, slots, starts, tree, groups: see attend.
    """
    normed, entering = add_norm(layer.input_layernorm, states, residual, operations)
    attended = attend(layer, normed, table, keys, values, slots, starts, operations, tree, groups)
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
    tree: TreeRows | None = None,
    groups: GroupedRows | None = None,
) -> Tensor:
    """The self-attention of a layer, without its norm and residual.

    Args:
        layer: its self_attn is packed.
        states: [R, T, H], or as wide as its projections read: [R, T, 2 H] of an EAGLE-3 head.
        table: [C', D] float32 of rope_table, C' at least C.
        keys, values: [S, Hk, C, D], the layer's part of a slot cache, of the states' type or rounded to 8 bits; the
            rows' keys and values are written there. Of latent attention the keys are [S, 1, C, L + P], and the values
            are not looked at.
        slots: [R] int64. starts: [R] int64, the place of each row's first token, and its position in a chain.
        tree: where tokens are nodes of trees.
        groups: rows that are read together; None where each stands alone.

    Returns:
        [R, T, H], or its shares, [P, R, T, H] float32; add_norm takes both.

    Raises:
        ValueError: trees go to latent attention, whose operations run chains only.
    """
    attention, operations = layer.self_attn, operations or operations_for(states.device)
    if isinstance(attention, LatentAttention):
        if tree is not None:
            raise ValueError("expected chains for fused latent attention, found trees; run the layers unfused")
        return attend_to_latents(attention, states, table, keys, slots, starts, operations.name, groups)
    qkv = operations.linear(states.flatten(0, 1), *packed(query_key_value(attention)), splits=True)
    positions, norms = None if tree is None else tree.positions, _head_norms(attention)
    queries = operations.rotate_and_store(
        qkv, table, keys, values, slots, starts, **norms, positions=positions, dtype=states.dtype
    )
    if groups is None:
        attended = operations.slot_attention(queries, keys, values, slots, starts, attention.scaling, tree)
    else:
        attended = torch.empty_like(queries.flatten(2))
        for call in groups.calls(queries, slots, starts, attended, tree):
            operations.slot_attention(
                call.queries, keys, values, call.slots, call.starts, attention.scaling, call.tree, call.out
            )
    return operations.linear(attended, *packed([attention.o_proj]), splits=True)


def store_context(
    layer: Any,
    states: Tensor,
    table: Tensor,
    keys: Tensor,
    values: Tensor,
    slots: Tensor,
    starts: Tensor,
    operations: Operations | None = None,
) -> None:
    """Write the keys and values of states that nothing is asked of, [R, T, H]; all else as for attend."""
    attention, operations = layer.self_attn, operations or operations_for(states.device)
    num_query = attention.q_proj.out_features
    stored = operations.linear(states.flatten(0, 1), *packed(query_key_value(attention)).rows_from(num_query))
    qkv = functional.pad(stored, (num_query, 0))
    operations.rotate_and_store(qkv, table, keys, values, slots, starts, **_head_norms(attention), dtype=states.dtype)


def _head_norms(attention: Any) -> dict[str, Any]:
    """What rotate_and_store takes of the norms of queries and keys, where there are such."""
    if not hasattr(attention, "q_norm"):
        return {}
    query_norm, key_norm = attention.q_norm, attention.k_norm
    return {"query_norm": query_norm.weight, "key_norm": key_norm.weight, "eps": query_norm.variance_epsilon}


def feed_forward(mlp: Any, states: Tensor, operations: Operations | None = None, splits: bool = False) -> Tensor:
    """The feed-forward part of a layer, packed, without its norm and residual: [R, T, H] -> [R, T, H].

    splits: whether its shares may be returned, [P, R, T, H] float32.
    """
    operations = operations or operations_for(states.device)
    if hasattr(mlp, "experts"):
        return expert_feed_forward(mlp, states.flatten(0, 1), operations.name).view(states.shape)
    activated = operations.gated_linear(states, *packed(gate_and_up(mlp)))
    return operations.linear(activated, *packed([mlp.down_proj]), splits=splits)


def reads_fp8(layer: Any, dtype: torch.dtype) -> bool:
    """Whether products of few tokens read the 8-bit weights of a packed layer as they are, on a GPU."""
    from harness.models.fused.linear import tiling_of

    attention, mlp = layer.self_attn, layer.mlp
    products = [(query_key_value(attention), False), (gate_and_up(mlp), True)]
    products += [((projection,), False) for projection in (attention.o_proj, mlp.down_proj)]
    weights = [(packed(projections).weight, gated) for projections, gated in products]
    token = {weight: torch.empty(1, weight.shape[1], dtype=dtype, device="meta") for weight, _ in weights}
    return all(tiling_of(token[weight], weight, gated, may_split=not gated) is not None for weight, gated in weights)


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


def add(states: Tensor, residual: Tensor, operations: Operations | None = None) -> Tensor:
    """states + residual where no norm follows, [R, T, H]; the states, or their shares, as for add_norm."""
    operations = operations or operations_for(states.device)
    return operations.add_shares(states.flatten(-3, -2), residual.flatten(0, 1)).view(residual.shape)


def attend_to_latents(
    attention: Any,
    # [R, T, H]
    states: Tensor,
    # [C', P] float32
    table: Tensor,
    # [S, 1, C, L + P]
    keys: Tensor,
    # [R] int64
    slots: Tensor,
    # [R] int64
    starts: Tensor,
    name: str,
    groups: GroupedRows | None = None,
) -> Tensor:
    """[R, T, H]; the rows' keys are written to the cache.

    Args:
        attention: a LatentAttention whose latent projections are packed.
        name: of the operations, triton or reference.
        groups: see attend.
    """
    operations = named_operations(name)
    norm, latent_width = attention.kv_a_layernorm, attention.latent_dim
    query_norm = getattr(attention, "q_a_layernorm", None)
    weight, bias, _ = packed(latent_projections(attention))
    joint = functional.linear(states.flatten(0, 1), weight, bias)
    queries = operations.norm_latents(
        joint,
        None if query_norm is None else query_norm.weight,
        0.0 if query_norm is None else query_norm.variance_epsilon,
        norm.weight,
        norm.variance_epsilon,
        table,
        keys,
        slots,
        starts,
        attention.interleaved,
    )
    if queries is None:
        queries = joint[:, : -keys.shape[-1]]
    else:
        queries = functional.linear(queries, attention.q_b_proj.weight)
    heads = queries.unflatten(-1, (attention.num_heads, -1))
    expansion = attention.kv_b_proj.weight.unflatten(0, (attention.num_heads, -1))
    absorbed = operations.absorb_queries(heads, expansion, table, starts, latent_width, attention.interleaved)
    if groups is None:
        attended = operations.latent_attention(absorbed, keys, slots, starts, latent_width, attention.scaling)
    else:
        attended = absorbed.new_empty(*absorbed.shape[:-1], latent_width)
        for call in groups.calls(absorbed, slots, starts, attended):
            operations.latent_attention(
                call.queries, keys, call.slots, call.starts, latent_width, attention.scaling, call.out
            )
    values = operations.expand_values(attended.flatten(0, 1), expansion, attention.value_dim)
    output = functional.linear(values, attention.o_proj.weight, attention.o_proj.bias)
    return output.view(states.shape)


def expert_feed_forward(
    moe: Any,
    # [N, H]
    states: Tensor,
    name: str,
) -> Tensor:
    """[N, H], without norm and residual.

    Args:
        moe: a Glm4MoeLiteMoE of transformers whose shared experts are packed.
        name: of the operations, triton or reference.
    """
    if len(states) > MAX_TOKENS:
        return moe(states[None])[0]
    operations, experts = named_operations(name), moe.experts
    shared = packed(gate_and_up(moe.shared_experts)).weight
    routing = operations.route_tokens(states, moe.gate.weight, moe.gate.e_score_correction_bias, Choice.of(moe.gate))
    activated = operations.expert_gate_up(states, experts.gate_up_proj, shared, routing)
    results = operations.expert_down(activated, experts.down_proj, moe.shared_experts.down_proj.weight, routing)
    return operations.sum_experts(results, routing)
