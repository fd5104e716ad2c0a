"""The end of a step of a walk through a tree, in the last program of the request: test the next child, or draw.

The step that follows is left in memory; see kernels.tree_step.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .conclude import keep_stats, load_stats
from .decide import entry
from .device_streams import BONUS, RESIDUAL, uniform
from .first_pass import combine_chunks
from .kseq_ratio import next_ratio
from .sample_next import chunk_masses, load_chunks
from .tree_children import (
    NO_CHILD,
    SMALLEST_REST,
    accept_certain,
    accept_uniforms,
    first_child,
    first_of,
    judge_children,
    load_children,
)
from .tree_emit import emit, keep_provisional
from .tree_weigh import open_node

READ: tl.constexpr = tl.constexpr(0)
WEIGH: tl.constexpr = tl.constexpr(1)
WEIGH_REST: tl.constexpr = tl.constexpr(2)
"""WEIGH, and the sum D of the draft row without the rejected children: where most of the row is gone, so that a
difference of probabilities would be mostly rounding."""
DONE: tl.constexpr = tl.constexpr(3)
FIND_RATIO: tl.constexpr = tl.constexpr(4)
"""K-SEQ: what some candidates for the discount rho of a node's children leave of the target."""
MOST_GONE: tl.constexpr = tl.constexpr(0.5)


@triton.jit
def load_draft_stats(draft, at, wanted):
    """(maximum, normalizer, threshold) of a draft row; 0, 1 and 0 unless wanted."""
    return (
        tl.load(draft.maximum + at, mask=wanted, other=0.0, cache_modifier=".cg"),
        tl.load(draft.normalizer + at, mask=wanted, other=1.0, cache_modifier=".cg"),
        tl.load(draft.threshold + at, mask=wanted, other=0.0, cache_modifier=".cg"),
    )


@triton.jit
def load_sums(sums, request, num_chunks, CHUNKS_PADDED: tl.constexpr):
    """[CHUNKS_PADDED] float64 sums of a request's chunks."""
    chunks = tl.arange(0, CHUNKS_PADDED)
    at = request.to(tl.int64) * num_chunks + chunks
    return tl.load(sums + at, mask=chunks < num_chunks, other=0.0, cache_modifier=".cg")


@triton.jit
def _test_next(columns, usable, target_probs, draft_probs, uniform_numbers, before, factor, mass, rest, has_mass):
    """Test the first usable child after `before`: (its place or NO_CHILD, whether it passes, c after its rejection).

    Args:
        factor, mass: c and M of what is left of the target, before the test.
        rest: D, of the child's law.
        has_mass: False where rounding left nothing of the target, which takes its own place then.
    """
    place = first_of(columns, usable & (columns > before))
    proposed = entry(draft_probs, columns, place)
    left = entry(target_probs, columns, place)
    if has_mass:
        left = tl.maximum(left - factor * proposed, 0.0)
    else:
        factor, mass = factor * 0.0, mass * 0.0 + 1.0
    passes = entry(uniform_numbers, columns, place) * (proposed / rest) * mass < left
    return place, (place < NO_CHILD) & passes, factor + mass / rest


@triton.jit
def _target_stats(rows, kept, mode, temperature, TRUNCATED: tl.constexpr, CHUNKS_PADDED: tl.constexpr):
    """(maximum, normalizer, threshold, argmax; [CHUNKS_PADDED] masses of the chunks after READ) of the target row."""
    masses = tl.full((CHUNKS_PADDED,), 0.0, tl.float64)
    if TRUNCATED:
        maximum, normalizer, threshold = load_stats(rows, kept)
        argmax = tl.load(rows.argmax + kept, cache_modifier=".cg")
    elif mode == READ:
        chunks = load_chunks(rows, kept, CHUNKS_PADDED)
        maximum, normalizer, argmax, entropy = combine_chunks(
            rows, kept, temperature, chunks, False, True, CHUNKS_PADDED
        )
        threshold = tl.full((), -float("inf"), tl.float32)
        masses = chunk_masses(chunks, maximum, temperature)
        keep_stats(rows, kept, (maximum, normalizer, threshold, argmax, entropy))
    else:
        maximum, normalizer, threshold = load_stats(rows, kept)
        argmax = tl.load(rows.argmax + kept, cache_modifier=".cg")
    return maximum, normalizer, threshold, argmax, masses


@triton.jit
def _sum_draft_row(draft, at, rows, row, temperature, CHUNKS_PADDED: tl.constexpr):
    """Keep the statistics of a draft row whose chunks are all there."""
    chunks = load_chunks(rows, row, CHUNKS_PADDED)
    maximum, normalizer, _, _ = combine_chunks(rows, row, temperature, chunks, False, False, CHUNKS_PADDED)
    tl.store(draft.maximum + at, maximum)
    tl.store(draft.normalizer + at, normalizer)
    tl.store(draft.threshold + at, tl.full((), -float("inf"), tl.float32))
    tl.debug_barrier()


@triton.jit
def _keep_accepted(tokens, walk, following, output, request, level, accepted, token_ids, count, columns):
    """Go on at the child that was accepted: its row is read next."""
    row = request.to(tl.int64)
    tl.store(walk.path + row * tokens.width + level, accepted.to(tl.int64))
    tl.store(output.token_ids + row * (tokens.width + 1) + level, entry(token_ids, columns, accepted))
    tl.store(following.modes + request, READ)
    tl.store(following.nodes + request, accepted + 1)
    tl.store(following.levels + request, level + 1)
    tl.store(following.places + request, -1)
    first = first_child(tokens, walk, request, accepted + 1, count, columns)
    tl.store(following.first_children + request, first)
    tl.store(following.factors + request, 0.0)
    tl.store(following.num_removed + request, 0)


@triton.jit
def _keep_rejected(following, request, mode, node, level, before, first, factor, num_removed):
    """Stay at the node, of which rows are weighed next."""
    tl.store(following.modes + request, mode)
    tl.store(following.nodes + request, node)
    tl.store(following.levels + request, level)
    tl.store(following.places + request, before)
    tl.store(following.first_children + request, first)
    tl.store(following.factors + request, factor)
    tl.store(following.num_removed + request, num_removed)


@triton.jit
def conclude_step(
    target, draft, tokens, temperature, count, stream, slot, rows, walk, following, output, request, cursor, kept,
    draft_at,
    compares, columns,
    FIRST: tl.constexpr, READS_DRAFT: tl.constexpr, SUMS_DRAFTS: tl.constexpr, IS_DISTINCT: tl.constexpr,
    IS_KSEQ: tl.constexpr, TRUNCATED: tl.constexpr, CHUNK: tl.constexpr, CHUNKS_PADDED: tl.constexpr,
):  # fmt: skip
    """Test the next child of a node whose rows have been read, and leave what follows; or draw the next token.

    K-SEQ tests all children at once, when it knows their discount.

    Args:
        following: the WalkState of the next step.
        cursor: (mode, node, level, place of the child rejected last, place of the draft row, c, number of rejected
            ones), as kernels.arguments.WalkState keeps them.
        kept: number of the target row's statistics.
        draft_at: offset of the draft row's statistics.
        compares: whether there is a draft row.
    """
    mode, node, level, before, first, factor, num_removed = cursor
    removed = walk.removed + request.to(tl.int64) * tokens.width
    token_ids, _, drafted = load_children(tokens, walk, request, node, count, columns)
    maximum, normalizer, threshold, argmax, masses = _target_stats(
        rows, kept, mode, temperature, TRUNCATED, CHUNKS_PADDED
    )
    if mode != READ:
        masses = load_sums(walk.masses, request, rows.num_chunks, CHUNKS_PADDED)
    stats = (maximum, normalizer, threshold, argmax)
    draft_stats = (maximum, normalizer, threshold)
    if READS_DRAFT:
        if SUMS_DRAFTS:
            if (mode == READ) & compares:
                _sum_draft_row(draft, draft_at, rows, kept + tokens.num_requests, temperature, CHUNKS_PADDED)
        draft_stats = load_draft_stats(draft, draft_at, compares)
    usable, target_probs, draft_probs = judge_children(
        target, draft, tokens, temperature, request, slot, node, first, token_ids, drafted, columns, stats,
        draft_stats, READS_DRAFT, IS_DISTINCT,
    )  # fmt: skip
    uniform_numbers = accept_uniforms(stream, level, columns)
    accepted = tl.full((), NO_CHILD, tl.int32)
    next_mode = tl.full((), DONE, tl.int32)
    if READS_DRAFT:
        if temperature == 0:
            accepted = first_of(columns, usable & (target_probs > 0))
        elif IS_KSEQ:
            num_children = tl.sum(usable.to(tl.int32), axis=0)
            if (num_children > 0) & (mode != WEIGH):
                factor, is_found = next_ratio(
                    walk, tokens, rows, request, num_children, mode == READ, normalizer, draft_stats[1], CHUNKS_PADDED
                )
                if is_found:
                    accepted = first_of(columns, usable & (uniform_numbers * (factor * draft_probs) < target_probs))
                if accepted == NO_CHILD:
                    next_mode = tl.where(is_found, WEIGH, FIND_RATIO)
        else:
            mass, rest = factor * 0.0 + 1.0, factor * 0.0 + 1.0
            if mode != READ:
                mass = tl.sum(masses, axis=0) / normalizer
            if IS_DISTINCT:
                rest = 1.0 - tl.sum(tl.where(usable & (columns <= before), draft_probs, 0.0), axis=0)
                if mode == WEIGH_REST:
                    rests = load_sums(walk.rests, request, rows.num_chunks, CHUNKS_PADDED)
                    rest = tl.sum(rests, axis=0) / draft_stats[1]
                    # the row has no further token, so that none of the other children is one of its
                    usable = usable & (columns <= tl.where(rest >= SMALLEST_REST, tokens.width, before))
            place, passes, next_factor = _test_next(
                columns, usable, target_probs, draft_probs, uniform_numbers, before, factor, mass, rest, mass > 0
            )
            if passes:
                accepted = place
            elif place < NO_CHILD:
                next_mode = tl.full((), WEIGH, tl.int32)
                factor = next_factor
                before = place
                if IS_DISTINCT:
                    tl.store(removed + num_removed, entry(token_ids, columns, place))
                    num_removed += 1
                    rest = rest - entry(draft_probs, columns, place)
                    if (rest < MOST_GONE) & (first_of(columns, usable & (columns > place)) < NO_CHILD):
                        next_mode = tl.full((), WEIGH_REST, tl.int32)
    elif mode == READ:
        accepted, num_removed = accept_certain(removed, columns, token_ids, usable, target_probs, uniform_numbers)
        if (accepted == NO_CHILD) & (num_removed > 0):
            next_mode = tl.full((), WEIGH, tl.int32)
    if TRUNCATED:
        # Where nothing was rejected the target's own masses have not been summed either.
        is_drawn = (mode == READ) & (temperature != 0) & (normalizer == normalizer)
        if is_drawn & (accepted == NO_CHILD) & (next_mode == DONE):
            next_mode = tl.full((), WEIGH, tl.int32)
            before = tokens.width
    if accepted < NO_CHILD:
        _keep_accepted(tokens, walk, following, output, request, level, accepted, token_ids, count, columns)
    elif next_mode != DONE:
        _keep_rejected(following, request, next_mode, node, level, before, first, factor, num_removed)
    else:
        tl.store(following.modes + request, DONE)
        flagged = (tl.sum((drafted & (usable == 0)).to(tl.int32), axis=0) > 0) | (normalizer != normalizer)
        flagged = flagged | (tl.load(tokens.counts + request) > tokens.width)
        purpose = tl.where(tl.sum(drafted.to(tl.int32), axis=0) > 0, RESIDUAL, BONUS)
        seed, position, round_index = stream
        opened = open_node(
            target, draft, tokens, temperature, request, slot, node, first, factor, stats, draft_stats, READS_DRAFT
        )
        emit(
            target, draft, tokens, temperature, rows, walk, output, request, level, opened, removed, num_removed,
            masses, argmax, uniform(seed, purpose, position + level, round_index), flagged, mode != READ, columns,
            READS_DRAFT, TRUNCATED, CHUNK, CHUNKS_PADDED,
        )  # fmt: skip
    if FIRST:
        if (accepted < NO_CHILD) | (next_mode != DONE):
            keep_provisional(tokens, walk, output, request, columns, accepted < NO_CHILD)
