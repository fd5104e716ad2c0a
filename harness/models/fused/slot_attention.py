"""Attention of rows to their slots. Twin of harness.models.fused.reference.slot_attention.

    attended[t, h] = sum_i softmax_i(scaling * query[t, h] . key[i]) value[i]        i = 0 .. start + t

Of rows that are trees a token sees what lies before the tree and the nodes that its mask names. Chains may have
windows, heads sinks (a share of the softmax that goes nowhere), and products a soft cap, cap * tanh(product / cap).

A program holds the queries of one row that share a key head (T tokens of G heads each) as the rows of one tile, reads a
share of the row's keys and values once, in blocks, and keeps a running maximum and sum, in float32. Blocks before the
window of its first query are left out. A sink is where the first program's maximum and sum begin. Where one program
for each row and key head would leave multiprocessors idle, the keys are shared out over several, and a second kernel
(combine_splits) puts their results together. How many keys a row has is read on the device; programs without any end at
once.

Sources: Milakov and Gimelshein, Online normalizer calculation for softmax (2018); Dao et al., FlashAttention (2022).

Shapes: G query heads of a key head, P programs that share the keys of a row.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from harness.models.fp8_linear import FP8
from harness.models.fused.attention_tilings import BUDGETS, MIN_ROWS, has_large_memory, tiling_of
from harness.models.fused.checks import check_cache, check_dtype, check_extras, check_rows, check_tensor, place_for
from harness.models.fused.combine_splits import combine_splits, new_parts, share
from harness.models.fused.overlap import overlaps
from harness.models.fused.tree_rows import MAX_NODES, TreeRows

LOG2_E = math.log2(math.e)
"""The kernels compute powers of 2: one instruction each."""
_LOG2_E = tl.constexpr(LOG2_E)


@triton.jit
def _load_nodes_seen(seen, tokens, inside):
    """Masks of the nodes that tokens see; of chains nothing is read."""
    masks = tokens
    if seen is not None:
        masks = tl.load(seen + tokens, mask=inside, other=0)
    return masks


@triton.jit
def _load_cached(cached, at, held, dtype, IN_FP8: tl.constexpr):
    """Keys or values, in the type of the queries."""
    found = tl.load(cached + at, mask=held, other=0)
    if IN_FP8:
        found = found.to(tl.float8e4nv, bitcast=True).to(dtype)
    return found


@triton.jit
def _is_seen(places, last_seen, nodes_seen, first_node, IS_TREE: tl.constexpr):
    """[queries, places] bool: places up to a query's own; of trees those before the tree and the nodes of its mask."""
    if IS_TREE:
        node = places - first_node
        # a shift by more bits than there are has no meaning
        bits = nodes_seen[:, None] >> tl.minimum(tl.maximum(node, 0), 63).to(tl.int64)[None, :]
        is_seen = (node < 0)[None, :] | ((bits & 1) != 0)
    else:
        is_seen = places[None, :] <= last_seen[:, None]
    return is_seen


@triton.jit
def _capped(exponents, cap):
    """cap * tanh(exponents / cap); without a cap they stay."""
    if cap is not None:
        # a power beyond the largest number leaves 1
        exponents = cap * (1.0 - 2.0 / (tl.exp2(exponents / cap * (2.0 * _LOG2_E)) + 1.0))
    return exponents


@triton.jit
def _begin_of_window(windows, row, begin, last_seen, BLOCK: tl.constexpr):
    """Where a program begins to read: its share, without the blocks that its first query does not see."""
    if windows is not None:
        first_seen = tl.maximum(tl.min(last_seen, axis=0) + 1 - tl.load(windows + row).to(tl.int32), 0)
        begin = tl.maximum(begin, first_seen // BLOCK * BLOCK)
    return begin


@triton.jit
def _is_in_window(is_seen, places, last_seen, windows, row):
    """What is seen of the places, [queries, places] bool; no more than a window of each query."""
    if windows is not None:
        window = tl.load(windows + row).to(tl.int32)
        is_seen = is_seen & (places[None, :] > last_seen[:, None] - window)
    return is_seen


@triton.jit
def _sums_at_first(sinks, query_heads, split, inside, ROWS: tl.constexpr):
    """(maximum, sum) of exponents before the first key: of a sink in the first program of a row, else of nothing."""
    maximum = tl.full((ROWS,), -float("inf"), tl.float32)
    sums = tl.full((ROWS,), 0.0, tl.float32)
    if sinks is not None:
        sink = tl.load(sinks + query_heads, mask=inside, other=0.0).to(tl.float32) * _LOG2_E
        maximum = tl.where(split == 0, sink, maximum)
        sums = tl.where(split == 0, 1.0, sums)
    return maximum, sums


@triton.jit
def _slot_attention_kernel(
    queries,  # [R, T, Hq, D]
    keys,  # [S, Hk, C, D]
    values,  # [S, Hk, C, D]
    slots,  # [R] int64
    starts,  # [R] int64
    seen,  # [R, T] int64, a bit for each node that a token sees; None for chains
    num_nodes,
    windows,  # [R] int64, places that a query sees at most; None for all up to its own
    sinks,  # [Hq], None for none
    softcap,  # cap * log2(e), None for none
    attended,  # [R, T, Hq, D], None where there are several splits
    parts,  # [R, T, Hq, P, D] float32, None where there is one
    log_sums,  # [R, T, Hq, P] float32, log2 of the sum of exponentials; None where there is one
    exponent_scale,  # scaling * log2(e)
    capacity,  # C
    num_splits,  # P
    slot_stride,
    head_stride,
    position_stride,
    TOKENS: tl.constexpr,
    KEY_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    WIDTH: tl.constexpr,
    WIDTH_PADDED: tl.constexpr,
    TILES: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
    IN_FP8: tl.constexpr,  # keys and values, which are given as uint8
    OVERLAPS: tl.constexpr,
):
    if OVERLAPS:
        gdc_launch_dependents()
        gdc_wait()
    program, split = tl.program_id(0), tl.program_id(1)
    row = (program // (KEY_HEADS * TILES)).to(tl.int64)
    head = program // TILES % KEY_HEADS
    # Both at once: a program waits for one, then for its first keys.
    start, slot = tl.load(starts + row), tl.load(slots + row)
    length, keys_per_split = share(start, TOKENS, capacity, num_splits, BLOCK)
    begin = split * keys_per_split
    end = tl.minimum(begin + keys_per_split, length)
    if begin < end:
        # Row t * G + g of the tile is query head g of the group, of token t.
        folded = program % TILES * ROWS + tl.arange(0, ROWS)
        token = folded // GROUP
        columns = tl.arange(0, WIDTH_PADDED)
        place = (row * TOKENS + token) * (KEY_HEADS * GROUP) + head * GROUP + folded % GROUP
        filled = (token < TOKENS)[:, None] & (columns < WIDTH)[None, :]
        query = tl.load(queries + place[:, None] * WIDTH + columns[None, :], mask=filled, other=0.0)
        last_seen = tl.minimum(start.to(tl.int32) + token, length - 1)
        nodes_seen = _load_nodes_seen(seen, row * TOKENS + token, token < TOKENS)
        first_node = start.to(tl.int32) + TOKENS - num_nodes

        first_key = slot * slot_stride + head.to(tl.int64) * head_stride
        maximum, sums = _sums_at_first(sinks, head * GROUP + folded % GROUP, split, token < TOKENS, ROWS)
        result = tl.full((ROWS, WIDTH_PADDED), 0.0, tl.float32)
        begin = _begin_of_window(windows, row, begin, last_seen, BLOCK)
        for first in tl.range(begin, end, BLOCK, num_stages=STAGES):
            places = first + tl.arange(0, BLOCK)
            at = first_key + places.to(tl.int64)[:, None] * position_stride + columns[None, :]
            # What lies beyond the end is never read: a weight of 0 would not hide a NaN there.
            held = (places < end)[:, None] & (columns < WIDTH)[None, :]
            key = _load_cached(keys, at, held, query.dtype, IN_FP8)
            exponents = _capped(tl.dot(query, tl.trans(key), input_precision="ieee") * exponent_scale, softcap)
            is_seen = _is_seen(places, last_seen, nodes_seen, first_node, seen is not None)
            is_seen = _is_in_window(is_seen, places, last_seen, windows, row)
            exponents = tl.where(is_seen, exponents, -float("inf"))
            higher = tl.maximum(maximum, tl.max(exponents, axis=1))
            # A query that sees none of these keys has a maximum of -inf, and -inf minus -inf would be NaN.
            reference = tl.where(higher == -float("inf"), 0.0, higher)
            weights = tl.exp2(exponents - reference[:, None])
            shrink = tl.exp2(maximum - reference)
            sums = sums * shrink + tl.sum(weights, axis=1)
            value = _load_cached(values, at, held, query.dtype, IN_FP8)
            result = tl.dot(weights.to(value.dtype), value, result * shrink[:, None], input_precision="ieee")
            maximum = higher

        # A query that saw none of these keys: its result is 0, and so is its weight beside other programs', 2^-inf.
        sums = tl.where(sums > 0, sums, 1.0)
        result = result / sums[:, None]
        if parts is None:
            tl.store(attended + place[:, None] * WIDTH + columns[None, :], result.to(query.dtype), mask=filled)
        else:
            part = place * num_splits + split
            tl.store(parts + part[:, None] * WIDTH + columns[None, :], result, mask=filled)
            tl.store(log_sums + part, maximum + tl.log2(sums), mask=token < TOKENS)


def slot_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    slots: Tensor,
    starts: Tensor,
    scaling: float,
    tree: TreeRows | None = None,
    out: Tensor | None = None,
    windows: Tensor | None = None,
    sinks: Tensor | None = None,
    softcap: float | None = None,
) -> Tensor:
    """Attend: query t of row r sees positions 0 .. starts[r] + t of its slot.

    Args:
        queries: [R, T, Hq, D] bfloat16, float16 or float32, without gaps.
        keys, values: [S, Hk, C, D] of the same type or rounded to 8 bits. The rows' own are already there. Positions
            from starts[r] + T on are never read; a query beyond the capacity sees the whole slot.
        slots: [R] int64 in [0, S); rows may share a slot.
        starts: [R] int64, 0 or more.
        scaling: factor of the products of queries and keys.
        tree: what each query sees instead, where tokens are nodes of trees.
        out: [R, T, Hq * D] of the queries' type, without gaps, where the result goes; None makes it.
        windows: [R] int64, 1 or more: of the positions that a query sees, the last so many; None for all. Of chains.
        sinks: [Hq] of a type that kernels compute in: a product beside those of the keys, with a value of 0.
        softcap: bound of scaled products, above 0.

    Returns:
        [R, T, Hq * D]. Sums are kept in float32; the weights are rounded to the type before they multiply values.
    """
    check_dtype("queries", queries)
    check_cache(keys, values, queries.dtype)
    check_rows(slots, starts)
    _, num_key_heads, capacity, width = keys.shape
    if queries.dim() != 4 or queries.shape[2] % num_key_heads:
        raise ValueError(
            f"queries must be [R, T, Hq, D] with a multiple of {num_key_heads} heads, found {list(queries.shape)}"
        )
    num_rows, (num_tokens, num_heads) = len(slots), queries.shape[1:3]
    check_tensor("queries", queries, (num_rows, num_tokens, num_heads, width), queries.dtype)
    if tree is not None:
        check_tensor("tree.seen", tree.seen, (num_rows, num_tokens), torch.int64)
        # Starts and lengths keep every place that is read below num_nodes; so no node lies beyond the bits of a mask.
        if not num_tokens <= tree.num_nodes <= MAX_NODES:
            raise ValueError(
                f"tree.num_nodes must be from {num_tokens}, the tokens of a row, to {MAX_NODES}, the bits of a mask, "
                f"found {tree.num_nodes}"
            )
    check_extras(windows, sinks, softcap, (num_rows, num_heads), is_tree=tree is not None)
    group, itemsize, in_fp8 = num_heads // num_key_heads, queries.element_size(), keys.dtype is FP8
    tiling = tiling_of(num_rows, num_key_heads, num_tokens * group, width, capacity, itemsize, has_large_memory())
    attended = place_for(out, (num_rows, num_tokens, num_heads * width), queries)
    parts, log_sums = new_parts((num_rows, num_tokens, num_heads, tiling.num_splits), width, queries.device)
    starts_early = overlaps(num_rows * num_tokens)
    _slot_attention_kernel[(num_rows * num_key_heads * tiling.num_tiles, tiling.num_splits)](
        queries=queries,
        keys=keys.view(torch.uint8) if in_fp8 else keys,
        values=values.view(torch.uint8) if in_fp8 else values,
        slots=slots,
        starts=starts,
        seen=None if tree is None else tree.seen,
        num_nodes=0 if tree is None else tree.num_nodes,
        windows=windows,
        sinks=sinks,
        softcap=None if softcap is None else softcap * LOG2_E,
        attended=attended if parts is None else None,
        parts=parts,
        log_sums=log_sums,
        exponent_scale=scaling * LOG2_E,
        capacity=capacity,
        num_splits=tiling.num_splits,
        slot_stride=keys.stride(0),
        head_stride=keys.stride(1),
        position_stride=keys.stride(2),
        TOKENS=num_tokens,
        KEY_HEADS=num_key_heads,
        GROUP=group,
        WIDTH=width,
        WIDTH_PADDED=max(MIN_ROWS, width),
        TILES=tiling.num_tiles,
        ROWS=tiling.rows,
        BLOCK=tiling.block,
        STAGES=tiling.num_stages,
        IN_FP8=in_fp8,
        OVERLAPS=starts_early,
        launch_pdl=starts_early,
        num_warps=tiling.num_warps,
        maxnreg=BUDGETS[itemsize].num_registers,
    )
    if parts is not None and log_sums is not None:
        combine_splits(parts, log_sums, starts, attended, capacity, tiling.block)
    return attended
