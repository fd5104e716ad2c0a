"""What a draft head reads: a token's embedding beside its feature. Twin: harness.models.fused.reference.join_embedded.

    joined = [embedding(token); feature], each through an RMS norm of its own where the head has such

One kernel in the place of two (EAGLE) to six (MTP): a chain runs it for each draft token, over a token a slot.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from harness.models.fused.add_rms_norm import LANES_PER_WARP, MAX_WARPS
from harness.models.fused.checks import check_joined
from harness.models.fused.overlap import overlaps


@triton.jit(do_not_specialize_on_alignment=["token_ids", "positions"])
def _join_embedded_kernel(
    token_ids,  # [N] int64
    positions,  # [N] int64, None where no embedding is zeroed
    table,  # [V, H]
    features,  # [N, H]
    token_weight,  # [H], None without norms
    feature_weight,  # [H], None without norms
    joined,  # [N, 2 H]
    normed,  # [N, H], None without norms
    hidden_size,
    token_eps,
    feature_eps,
    BLOCK: tl.constexpr,
    OVERLAPS: tl.constexpr,
):
    if OVERLAPS:
        gdc_launch_dependents()
        gdc_wait()
    row, half = tl.program_id(0).to(tl.int64), tl.program_id(1)
    columns = tl.arange(0, BLOCK)
    inside = columns < hidden_size
    source, is_read = features + row * hidden_size, half >= 0
    if half == 0:
        source = table + tl.load(token_ids + row) * hidden_size
        if positions is not None:
            is_read = tl.load(positions + row) != 0
    state = tl.load(source + columns, mask=inside & is_read, other=0.0)
    if token_weight is not None:
        weight, eps = feature_weight, feature_eps
        if half == 0:
            weight, eps = token_weight, token_eps
        scale = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
        wide = state.to(tl.float32)
        scaled = (wide * tl.rsqrt(tl.sum(wide * wide) / hidden_size + eps)).to(state.dtype)
        state = (scale * scaled.to(tl.float32)).to(state.dtype)
        if half == 1:
            tl.store(normed + row * hidden_size + columns, state, mask=inside)
    tl.store(joined + (2 * row + half) * hidden_size + columns, state, mask=inside)


def join_embedded(
    token_ids: Tensor,
    table: Tensor,
    features: Tensor,
    norms: tuple[tuple[Tensor, float], tuple[Tensor, float]] | None = None,
    positions: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Embeddings of tokens beside their features.

    Args:
        token_ids: [N] int64, without gaps, from 0 to V - 1; others are read from beyond the table.
        table: [V, H] bfloat16, float16 or float32, the embedding.
        features: [N, H] of the type.
        norms: weight [H] of the type and eps, of the embeddings and of the features; None for no norms.
        positions: [N] int64; the embedding of a token at position 0 is taken as 0. None for no such.

    Returns:
        ([N, 2 H] joined, [N, H] the features behind their norm), rounded as by add_rms_norm. Without norms the second
        is `features` itself.
    """
    num_tokens, hidden_size = len(token_ids), table.shape[-1]
    check_joined(token_ids, table, features, norms or (), positions)
    joined = torch.empty(num_tokens, 2 * hidden_size, dtype=table.dtype, device=table.device)
    normed = features if norms is None else torch.empty_like(features)
    if num_tokens == 0:
        return joined, normed
    (token_weight, token_eps), (feature_weight, feature_eps) = norms or ((None, 0.0), (None, 0.0))
    block, starts_early = triton.next_power_of_2(hidden_size), overlaps(num_tokens)
    _join_embedded_kernel[(num_tokens, 2)](
        token_ids=token_ids,
        positions=positions,
        table=table,
        features=features,
        token_weight=token_weight,
        feature_weight=feature_weight,
        joined=joined,
        normed=None if norms is None else normed,
        hidden_size=hidden_size,
        token_eps=token_eps,
        feature_eps=feature_eps,
        BLOCK=block,
        OVERLAPS=starts_early,
        launch_pdl=starts_early,
        num_warps=max(1, min(MAX_WARPS, block // LANES_PER_WARP)),
    )
    return joined, normed
