"""Take the map of the keys into queries, and rotate them. Twin of harness.models.fused.reference.absorb_queries.

    query -> [W_k^T query_nope; query_rope rotated]      W_k [D_n, L] of each head

A program multiplies a tile of tokens by a tile of the columns of one head's W_k, or rotates a head's other part.
Source: DeepSeek-AI, DeepSeek-V2 (2024), section 2.1.

Shapes: N tokens, Hq heads, D_n width of a head's unrotated query, P rotated width, V width of a head's value, L width
of a latent, R rows, C' positions.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor, empty

from harness.models.fused.checks import check_dtype, check_table, check_tensor

COLUMNS = 64
"""Of W_k, of a program: with 20 heads and latents of 512, 160 programs read 24 kB each, all under way at once."""
BLOCK = 64
"""Components of the query that are multiplied at a time; whole tiles of 192."""
NUM_STAGES = 3
MIN_ROWS, MAX_ROWS = 16, 64
"""Tokens of a program."""
NUM_WARPS = 4


@triton.jit
def _absorb_queries_kernel(
    states,  # [N, Hq * (D_n + P)]
    expansion,  # [Hq * (D_n + V), L]
    table,  # [C', P] float32
    starts,  # [R] int64
    queries,  # [N, Hq, L + P]
    num_all,  # N
    num_tokens,  # T
    num_positions,  # C'
    state_stride,
    nope_width,  # D_n
    expansion_width,  # D_n + V
    latent_width,  # L
    HEADS: tl.constexpr,
    HALF: tl.constexpr,  # P / 2
    HALF_PADDED: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    TILES: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
):
    head, tile = tl.program_id(0) // (TILES + 1), tl.program_id(0) % (TILES + 1)
    tokens = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    held = (tokens < num_all)[:, None]
    head_states = states + tokens.to(tl.int64)[:, None] * state_stride + head * (nope_width + 2 * HALF)
    outputs = queries + (tokens.to(tl.int64)[:, None] * HEADS + head) * (latent_width + 2 * HALF)
    if tile < TILES:
        columns = tile * COLUMNS + tl.arange(0, COLUMNS)[None, :]
        weights = expansion + head.to(tl.int64) * expansion_width * latent_width + columns
        result = tl.full((ROWS, COLUMNS), 0.0, tl.float32)
        for depth in tl.range(0, nope_width, BLOCK, num_stages=STAGES):
            at = depth + tl.arange(0, BLOCK)
            state = tl.load(head_states + at[None, :], mask=held & (at < nope_width)[None, :], other=0.0)
            weight = tl.load(
                weights + at[:, None] * latent_width,
                mask=(at < nope_width)[:, None] & (columns < latent_width),
                other=0.0,
            )
            result = tl.dot(state, weight, result, input_precision="ieee")
        tl.store(outputs + columns, result.to(queries.dtype.element_ty), mask=held & (columns < latent_width))
    else:
        pairs = tl.arange(0, HALF_PADDED)[None, :]
        inside = held & (pairs < HALF)
        first_at = 2 * pairs if INTERLEAVED else pairs
        apart: tl.constexpr = 1 if INTERLEAVED else HALF
        rope = head_states + nope_width + first_at
        first = tl.load(rope, mask=inside, other=0.0).to(tl.float32)
        second = tl.load(rope + apart, mask=inside, other=0.0).to(tl.float32)
        start = tl.load(starts + tokens // num_tokens, mask=tokens < num_all, other=0)
        position = (start + tokens % num_tokens)[:, None]
        known = inside & (position < num_positions)
        angles = table + position * (2 * HALF) + pairs
        cosine = tl.load(angles, mask=known, other=0.0)
        sine = tl.load(angles + HALF, mask=known, other=0.0)
        turned = outputs + latent_width + pairs
        dtype = queries.dtype.element_ty
        tl.store(turned, (first * cosine - second * sine).to(dtype), mask=inside)
        tl.store(turned + HALF, (second * cosine + first * sine).to(dtype), mask=inside)


def absorb_queries(
    states: Tensor, expansion: Tensor, table: Tensor, starts: Tensor, latent_width: int, interleaved: bool
) -> Tensor:
    """Make queries that attend to latents.

    Args:
        states: [N, Hq, D_n + P] bfloat16, float16 or float32, a token's components without gaps.
        expansion: [Hq, D_n + V, L] of the same type, the weight of kv_b_proj.
        table: [C', P] float32 of harness.models.fused.rope_table.
        starts: [R] int64, the position of each row's first token; N = R * T.
        latent_width: L.
        interleaved: see harness.models.fused.norm_latents.

    Returns:
        [R, T, Hq, L + P]. Products are summed in float32 and rounded once, and so is the rotation. A position that the
        table does not hold gives a rotated part without meaning.
    """
    check_dtype("states", states)
    num_all, num_heads, query_width = states.shape
    rotated_width = table.shape[-1]
    nope_width, half = query_width - rotated_width, rotated_width // 2
    if states.stride()[1:] != (query_width, 1):
        raise ValueError(f"states must have a token's components without gaps, found strides {states.stride()}")
    check_tensor("expansion", expansion, (num_heads, expansion.shape[1], latent_width), states.dtype)
    check_table(table, rotated_width, 1)
    num_rows = len(starts)
    shape = (num_rows, num_all // num_rows, num_heads, latent_width + rotated_width)
    queries = empty(shape, dtype=states.dtype, device=states.device)
    rows = min(MAX_ROWS, max(MIN_ROWS, triton.next_power_of_2(num_all)))
    num_tiles = triton.cdiv(latent_width, COLUMNS)
    _absorb_queries_kernel[(num_heads * (num_tiles + 1), triton.cdiv(num_all, rows))](
        states=states,
        expansion=expansion,
        table=table,
        starts=starts,
        queries=queries,
        num_all=num_all,
        num_tokens=shape[1],
        num_positions=len(table),
        state_stride=states.stride(0),
        nope_width=nope_width,
        expansion_width=expansion.shape[1],
        latent_width=latent_width,
        HEADS=num_heads,
        HALF=half,
        HALF_PADDED=triton.next_power_of_2(half),
        INTERLEAVED=interleaved,
        TILES=num_tiles,
        ROWS=rows,
        COLUMNS=COLUMNS,
        BLOCK=BLOCK,
        STAGES=NUM_STAGES,
        num_warps=NUM_WARPS,
    )
    return queries
