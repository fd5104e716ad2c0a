"""What rejected children leave of a node's target row: the masses of [p - c q]+, chunk by chunk.

The weights are those of kernels.chain.residual. Of distinct siblings also the draft row without the rejected ones.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..chain.residual import residual_weights, without_tokens
from ..rows.addresses import draft_row, row_address
from ..rows.softmax_weights import reciprocal, scale, weigh
from ..rows.token_mask import draft_mask_row, only_allowed, target_mask_row
from ..rows.unaligned import load_logits

LARGEST_RATIO: tl.constexpr = tl.constexpr(1e30)
"""Times a weight of 0 it is 0."""


@triton.jit
def open_node(
    target, draft, tokens, temperature, request, slot, node, first, factor, stats, draft_stats,
    READS_DRAFT: tl.constexpr,
):  # fmt: skip
    """What kernels.chain.residual needs to know of a node's rows; see `open_rows` there.

    Args:
        factor: c; the draft row is read where it is above 0.
        stats, draft_stats: maximum, normalizer, threshold.
    """
    maximum, normalizer, threshold = stats[0], stats[1], stats[2]
    row_logits = row_address(target, tokens, request, node)
    draft_logits = row_logits
    draft_maximum, draft_threshold = maximum, threshold
    num_ids = tl.full((), 0, tl.int32)
    ratio = tl.full((), 0.0, tl.float32)
    draft_mask = tl.full((), -1, tl.int64)
    if READS_DRAFT:
        compares = factor > 0
        place = tl.maximum(first, 0)
        draft_logits, _ = draft_row(draft, slot, place)
        draft_maximum = tl.where(compares, draft_stats[0], 0.0)
        draft_threshold = draft_stats[2]
        num_ids = tl.where(compares, draft.vocab_size, 0)
        ratio = tl.where(compares, factor * normalizer * reciprocal(draft_stats[1]), 0.0)
        ratio = tl.minimum(ratio, LARGEST_RATIO).to(tl.float32)
        draft_mask = draft_mask_row(draft, slot, place, compares)
    high, low = scale(temperature)
    return (
        row_logits, maximum, threshold,
        draft_logits, draft_maximum, draft_threshold, num_ids, -ratio,
        tl.full((), -1, tl.int32), high, low, normalizer,
        target_mask_row(target, tokens, request, node, True),
        draft_mask,
    )  # fmt: skip


@triton.jit
def weigh_node(
    target, draft, opened, removed, chunks, with_rest,
    READS_DRAFT: tl.constexpr, TRUNCATED: tl.constexpr, IS_DISTINCT: tl.constexpr, PARTS: tl.constexpr,
    CHUNK: tl.constexpr, GROUP: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """([PARTS] float64 masses of chunks, a warp for each; the same of the draft row without the rejected children)."""
    LANES: tl.constexpr = 32
    STEP: tl.constexpr = LANES * GROUP
    first = chunks[:, None] * CHUNK + tl.arange(0, STEP)[None, :]
    sums = tl.full((PARTS, LANES), 0.0, tl.float64)
    for step in tl.range(0, CHUNK, STEP, num_stages=1, loop_unroll_factor=UNROLL):
        weights = residual_weights(target, draft, opened, first + step, READS_DRAFT, TRUNCATED, removed)
        sums += tl.sum(tl.reshape(weights, (PARTS, LANES, GROUP)), axis=2).to(tl.float64)
    rests = tl.full((PARTS, LANES), 0.0, tl.float64)
    if IS_DISTINCT:
        if with_rest:
            for step in tl.range(0, CHUNK, STEP, num_stages=1):
                offsets = first + step
                token_ids = offsets
                if draft.to_draft_ids is None:
                    proposed = load_logits(opened[3], offsets, draft.vocab_size, draft.in_words, None)
                else:
                    ids = tl.load(draft.to_draft_ids + offsets, mask=offsets < target.vocab_size, other=-1)
                    proposed = tl.load(opened[3] + ids, mask=ids >= 0, other=-float("inf")).to(tl.float32)
                mask = draft.mask_words, draft.mask_stride, draft.num_mask_words, draft.mask_token_ids, opened[13]
                proposed = only_allowed(proposed, offsets, target.vocab_size, mask, GROUP)
                covered = weigh(proposed, opened[4], opened[9], opened[10])
                if TRUNCATED:
                    covered = tl.where(proposed >= opened[5], covered, 0.0)
                covered = without_tokens(covered, token_ids, removed)
                rests += tl.sum(tl.reshape(covered, (PARTS, LANES, GROUP)), axis=2).to(tl.float64)
    return tl.sum(sums, axis=1), tl.sum(rests, axis=1)


@triton.jit
def rejected_ids(walk, tokens):
    """Address of the ids of rejected children, a row for each program: those of a request walk alike, but one may still
    be where another one was, and a walk writes over what it has left behind."""
    return walk.removed + tl.program_id(0).to(tl.int64) * tokens.width


@triton.jit
def cells_of(tokens, request, number):
    """Where the chunks of a request lie among sums that are kept for several numbers, int64; a row of C chunks each."""
    return (number * tokens.num_requests + request).to(tl.int64)


@triton.jit
def load_sums(sums, cells, num_chunks, CHUNKS_PADDED: tl.constexpr):
    """[CHUNKS_PADDED] float64 sums of a request's chunks."""
    chunks = tl.arange(0, CHUNKS_PADDED)
    return tl.load(sums + cells * num_chunks + chunks, mask=chunks < num_chunks, other=0.0, cache_modifier=".cg")


@triton.jit
def weigh_share(
    target, draft, opened, removed, rows, walk, cells, program, num_programs, with_rest,
    READS_DRAFT: tl.constexpr, TRUNCATED: tl.constexpr, IS_DISTINCT: tl.constexpr, NUM_GROUPS: tl.constexpr,
    PARTS: tl.constexpr, CHUNK: tl.constexpr, GROUP: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """Leave the masses of a program's share of the chunks in the walk's memory, every num_programs-th group of them.

    Args:
        opened: from `open_node`.
        cells: from `cells_of`.
    """
    for group in tl.range(program, NUM_GROUPS, num_programs, num_stages=1):
        chunks = group * PARTS + tl.arange(0, PARTS)
        masses, rests = weigh_node(
            target, draft, opened, removed, chunks, with_rest,
            READS_DRAFT, TRUNCATED, IS_DISTINCT, PARTS, CHUNK, GROUP, UNROLL,
        )  # fmt: skip
        at, inside = cells * rows.num_chunks + chunks, chunks < rows.num_chunks
        tl.store(walk.masses + at, masses, mask=inside)
        if IS_DISTINCT:
            if with_rest:
                tl.store(walk.rests + at, rests, mask=inside)
