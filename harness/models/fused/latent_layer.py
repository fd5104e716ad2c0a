"""Latent attention of a layer, run through the fused operations.

    linear (latents of queries, of keys and values) -> norm_latents -> linear -> absorb_queries -> latent_attention
    -> expand_values -> linear

Shapes: R rows, T tokens of a row, H hidden size, L width of a latent, P rotated width, S slots, C positions of a slot.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn import functional

from harness.models.fused.fuse import latent_projections, packed
from harness.models.fused.operations import named_operations


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
) -> Tensor:
    """[R, T, H]; the rows' keys are written to the cache.

    Args:
        attention: a LatentAttention whose latent projections are packed.
        name: of the operations, triton or reference.
    """
    operations = named_operations(name)
    norm, latent_width = attention.kv_a_layernorm, attention.latent_dim
    query_norm = getattr(attention, "q_a_layernorm", None)
    joint = functional.linear(states.flatten(0, 1), *packed(latent_projections(attention)))
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
    attended = operations.latent_attention(absorbed, keys, slots, starts, latent_width, attention.scaling)
    values = operations.expand_values(attended.flatten(0, 1), expansion, attention.value_dim)
    output = functional.linear(values, attention.o_proj.weight, attention.o_proj.bias)
    return output.view(states.shape)
