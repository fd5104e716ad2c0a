"""Attention of rows to the latents of their slots. Twin of harness.models.fused.reference.latent_attention.

    attended[t, h] = sum_i softmax_i(scaling * query[t, h] . key[i]) latent[i]        i = 0 .. start + t
    key[i] = [latent[i]; rotated[i]]

There is one key head, and its values are the first part of its keys: a block of latents is read once and multiplied
twice. A program holds some of the T * Hq queries of one row as the rows of a tile and reads a share of the row's keys;
see harness.models.fused.slot_attention, whose way of sharing keys out and putting results together this is.

Sources: DeepSeek-AI, DeepSeek-V2 (2024), section 2.1; Dao et al., FlashAttention (2022).

Shapes: R rows, T tokens of a row, Hq heads, L width of a latent, P rotated width, S slots, C positions of a slot; in
the sizes of results P is the number of programs that share the keys of a row.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from harness.models.fused.checks import check_dtype, check_latents, check_rows, check_tensor, place_for
from harness.models.fused.combine_splits import combine_splits, new_parts, share

NUM_PROGRAMS = 132
"""Programs that keys are shared out for: one for each multiprocessor of an H100 or H200."""
MAX_SPLITS = 32
"""Programs that share a row's keys at most: one of the second kernel holds 32 results of 512 components."""
MIN_ROWS = 16
LOG2_E = math.log2(math.e)


class LatentTiling(NamedTuple):
    """What a program of a type holds."""

    max_rows: int
    """Queries of a tile."""
    block: int
    """Keys of a block."""
    num_stages: int
    num_warps: int


TILINGS = {2: LatentTiling(32, 64, 2, 8), 4: LatentTiling(16, 16, 1, 8)}
"""By bytes of a component. 32 rows of results of 512 components are 64 of the 180 registers of a thread of 8 warps, and
their queries and blocks of 64 keys take 115 kB of shared memory: one program fits in a multiprocessor. Measured on an
H200 with 16 slots, 20 heads: 12 us for one token a slot, 21 us for four; blocks of 32 keys: 15 and 29."""


@triton.jit
def _latent_attention_kernel(
    queries,  # [R, T, Hq, L + P]
    keys,  # [S, 1, C, L + P]
    slots,  # [R] int64
    starts,  # [R] int64
    attended,  # [R, T, Hq, L], None where there are several splits
    parts,  # [R, T, Hq, P, L] float32, None where there is one
    log_sums,  # [R, T, Hq, P] float32, log2 of the sum of exponentials; None where there is one
    exponent_scale,  # scaling * log2(e)
    capacity,  # C
    num_splits,
    slot_stride,
    position_stride,
    TOKENS: tl.constexpr,
    HEADS: tl.constexpr,
    LATENT: tl.constexpr,
    LATENT_PADDED: tl.constexpr,
    ROTATED: tl.constexpr,
    ROTATED_PADDED: tl.constexpr,
    TILES: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
):
    program, split = tl.program_id(0), tl.program_id(1)
    row = (program // TILES).to(tl.int64)
    start, slot = tl.load(starts + row), tl.load(slots + row)
    length, keys_per_split = share(start, TOKENS, capacity, num_splits, BLOCK)
    begin = split * keys_per_split
    end = tl.minimum(begin + keys_per_split, length)
    if begin < end:
        # Row t * Hq + h of the tiles of a row is head h of token t.
        folded = program % TILES * ROWS + tl.arange(0, ROWS)
        token = folded // HEADS
        filled = folded < TOKENS * HEADS
        columns, turning = tl.arange(0, LATENT_PADDED), tl.arange(0, ROTATED_PADDED)
        place = row * (TOKENS * HEADS) + folded
        row_queries = queries + place[:, None] * (LATENT + ROTATED)
        inside, turns = (columns < LATENT)[None, :], (turning < ROTATED)[None, :]
        query = tl.load(row_queries + columns[None, :], mask=filled[:, None] & inside, other=0.0)
        query_turned = tl.load(row_queries + LATENT + turning[None, :], mask=filled[:, None] & turns, other=0.0)
        last_seen = tl.minimum(start.to(tl.int32) + token, length - 1)

        first_key = keys + slot * slot_stride
        maximum = tl.full((ROWS,), -float("inf"), tl.float32)
        sums = tl.full((ROWS,), 0.0, tl.float32)
        result = tl.full((ROWS, LATENT_PADDED), 0.0, tl.float32)
        for first in tl.range(begin, end, BLOCK, num_stages=STAGES):
            places = first + tl.arange(0, BLOCK)
            at = first_key + places.to(tl.int64)[:, None] * position_stride
            # What lies beyond the end is never read: a weight of 0 would not hide a NaN there.
            held = (places < end)[:, None]
            latent = tl.load(at + columns[None, :], mask=held & inside, other=0.0)
            turned = tl.load(at + LATENT + turning[None, :], mask=held & turns, other=0.0)
            exponents = tl.dot(query, tl.trans(latent), input_precision="ieee")
            exponents = tl.dot(query_turned, tl.trans(turned), exponents, input_precision="ieee") * exponent_scale
            exponents = tl.where(places[None, :] <= last_seen[:, None], exponents, -float("inf"))
            higher = tl.maximum(maximum, tl.max(exponents, axis=1))
            # A query that sees none of these keys has a maximum of -inf, and -inf minus -inf would be NaN.
            reference = tl.where(higher == -float("inf"), 0.0, higher)
            weights = tl.exp2(exponents - reference[:, None])
            shrink = tl.exp2(maximum - reference)
            sums = sums * shrink + tl.sum(weights, axis=1)
            result = tl.dot(weights.to(latent.dtype), latent, result * shrink[:, None], input_precision="ieee")
            maximum = higher

        # A query that saw none of these keys: its result is 0, and so is its weight beside other programs', 2^-inf.
        sums = tl.where(sums > 0, sums, 1.0)
        result = result / sums[:, None]
        stored = filled[:, None] & inside
        if parts is None:
            tl.store(attended + place[:, None] * LATENT + columns[None, :], result.to(query.dtype), mask=stored)
        else:
            part = place * num_splits + split
            tl.store(parts + part[:, None] * LATENT + columns[None, :], result, mask=stored)
            tl.store(log_sums + part, maximum + tl.log2(sums), mask=filled)


def latent_attention(
    queries: Tensor,
    keys: Tensor,
    slots: Tensor,
    starts: Tensor,
    latent_width: int,
    scaling: float,
    out: Tensor | None = None,
) -> Tensor:
    """Attend: query t of row r sees positions 0 .. starts[r] + t of its slot.

    Args:
        queries: [R, T, Hq, L + P] bfloat16, float16 or float32, without gaps, as absorb_queries makes them.
        keys: [S, 1, C, L + P] of the same type. The rows' own are already there. Positions from starts[r] + T on are
            never read; a query beyond the capacity sees the whole slot.
        slots: [R] int64 in [0, S); rows may share a slot.
        starts: [R] int64, 0 or more.
        latent_width: L.
        scaling: factor of the products of queries and keys.
        out: [R, T, Hq, L] of the queries' type, without gaps, where the result goes; None makes it.

    Returns:
        [R, T, Hq, L]. Sums are kept in float32; the weights are rounded to the type before they multiply latents.
    """
    check_dtype("queries", queries)
    check_latents(keys, queries.dtype)
    check_rows(slots, starts)
    capacity, key_width = keys.shape[2:]
    num_rows, (num_tokens, num_heads) = len(slots), queries.shape[1:3]
    check_tensor("queries", queries, (num_rows, num_tokens, num_heads, key_width), queries.dtype)
    device, tiling = queries.device, TILINGS[queries.element_size()]
    rows = min(tiling.max_rows, max(MIN_ROWS, triton.next_power_of_2(num_tokens * num_heads)))
    num_tiles = triton.cdiv(num_tokens * num_heads, rows)
    wanted = NUM_PROGRAMS // (num_rows * num_tiles)
    num_splits = max(1, min(wanted, MAX_SPLITS, triton.cdiv(capacity, tiling.block)))
    attended = place_for(out, (num_rows, num_tokens, num_heads, latent_width), queries)
    parts, log_sums = new_parts((num_rows, num_tokens, num_heads, num_splits), latent_width, device)
    _latent_attention_kernel[(num_rows * num_tiles, num_splits)](
        queries=queries,
        keys=keys,
        slots=slots,
        starts=starts,
        attended=attended if parts is None else None,
        parts=parts,
        log_sums=log_sums,
        exponent_scale=scaling * LOG2_E,
        capacity=capacity,
        num_splits=num_splits,
        slot_stride=keys.stride(0),
        position_stride=keys.stride(2),
        TOKENS=num_tokens,
        HEADS=num_heads,
        LATENT=latent_width,
        LATENT_PADDED=max(MIN_ROWS, triton.next_power_of_2(latent_width)),
        ROTATED=key_width - latent_width,
        ROTATED_PADDED=max(MIN_ROWS, triton.next_power_of_2(key_width - latent_width)),
        TILES=num_tiles,
        ROWS=rows,
        BLOCK=tiling.block,
        STAGES=tiling.num_stages,
        num_warps=tiling.num_warps,
    )
    if parts is not None and log_sums is not None:
        combine_splits(parts, log_sums, starts, attended, capacity, tiling.block)
    return attended
