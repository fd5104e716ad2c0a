"""The test of the next child of a node whose rows have been read or weighed, in every program of the request alike.

They compute it from the same numbers in the same order, so that all come to the same step: see
kernels.tree.rejection_walk.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..chain.accept_count import entry
from ..chain.row_epilogue import load_stats
from ..chain.row_reduce import combine_chunks
from ..chain.sample_next import load_chunks
from ..rows.softmax_weights import reciprocal
from .children import NO_CHILD, SMALLEST_REST, accept_certain, children_of, first_of
from .kseq_ratio import TOLERANCE, next_interval
from .residual import cells_of, load_sums, rejected_ids

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
    """(maximum, normalizer, threshold) of draft rows; 0, 1 and 0 unless wanted."""
    return (
        tl.load(draft.maximum + at, mask=wanted, other=0.0, cache_modifier=".cg"),
        tl.load(draft.normalizer + at, mask=wanted, other=1.0, cache_modifier=".cg"),
        tl.load(draft.threshold + at, mask=wanted, other=0.0, cache_modifier=".cg"),
    )


@triton.jit
def node_stats(
    draft, tokens, temperature, request, rows, node, draft_at, compares, is_odd,
    READS_DRAFT: tl.constexpr, SUMS_DRAFTS: tl.constexpr, TRUNCATED: tl.constexpr, CHUNKS_PADDED: tl.constexpr,
):  # fmt: skip
    """(maximum, normalizer, threshold, argmax of a node's target row; maximum, normalizer, threshold of its draft row).

    Args:
        draft_at: offset of the draft row's statistics.
        compares: whether there is a draft row.
        is_odd: of the meeting before which the chunks were read; not used where rows are cut.
    """
    if TRUNCATED:
        row = request.to(tl.int64) * (tokens.width + 1) + node
        maximum, normalizer, threshold = load_stats(rows, row)
        argmax = tl.load(rows.argmax + row, cache_modifier=".cg")
    else:
        cells = cells_of(tokens, request, is_odd * (1 + SUMS_DRAFTS))
        chunks = load_chunks(rows, cells, CHUNKS_PADDED)
        maximum, normalizer, argmax, _ = combine_chunks(rows, cells, temperature, chunks, False, True, CHUNKS_PADDED)
        threshold = tl.full((), -float("inf"), tl.float32)
    draft_maximum, draft_normalizer, draft_threshold = maximum, normalizer, threshold
    if READS_DRAFT:
        if SUMS_DRAFTS:
            if compares:
                chunks = load_chunks(rows, cells + tokens.num_requests, CHUNKS_PADDED)
                draft_maximum, draft_normalizer, _, _ = combine_chunks(
                    rows, cells, temperature, chunks, False, False, CHUNKS_PADDED
                )
        else:
            draft_maximum, draft_normalizer, draft_threshold = load_draft_stats(draft, draft_at, compares)
    return maximum, normalizer, threshold, argmax, draft_maximum, draft_normalizer, draft_threshold


@triton.jit
def _test_next(columns, usable, target_probs, draft_probs, uniform_numbers, before, factor, mass, rest, has_mass):
    """Test the first usable child after `before`: (its place or NO_CHILD, whether it passes, c after its rejection).

    Args:
        factor, mass: c and M of what is left of the target, before the test.
        rest: D, of the child's law.
        has_mass: False where rounding left nothing of the target, which takes its own place then.
    """
    left = target_probs
    if has_mass:
        left = tl.maximum(target_probs - factor * draft_probs, 0.0)
    else:
        factor, mass = factor * 0.0, mass * 0.0 + 1.0
    inverse_rest = reciprocal(rest)
    passes = uniform_numbers * (draft_probs * inverse_rest) * mass < left
    # one reduction for the place and its test
    found = tl.where(usable & (columns > before), 2 * columns + passes.to(tl.int32), 2 * NO_CHILD)
    found = tl.min(found, axis=0)
    return found // 2, (found % 2) == 1, factor + mass * inverse_rest


@triton.jit
def decide_step(
    tokens, temperature, rows, walk, request, nodes, judged, uniform_numbers, stats, cursor, interval, is_odd, columns,
    READS_DRAFT: tl.constexpr, IS_DISTINCT: tl.constexpr, SHARES_DISCOUNT: tl.constexpr, TRUNCATED: tl.constexpr,
    CHUNKS_PADDED: tl.constexpr,
):  # fmt: skip
    """Test the next child of a node; K-SEQ tests all children at once, when it knows their discount.

    Args:
        judged: from kernels.tree.children.judge, of all draft tokens.
        stats: from `node_stats`.
        cursor: (mode, node, place of the child rejected last, c, number of rejected ones).
        interval: (low, high), of K-SEQ's search, whose c is in the middle.
        is_odd: of the meeting before which rows were read or weighed.

    Returns:
        (the accepted child or NO_CHILD, the next mode, usable children, and what follows of `cursor` from the place
        on, and of `interval`).
    """
    mode, node, before, factor, num_removed = cursor
    token_ids = nodes[0]
    usable, target_probs, draft_probs = judged
    low, high = interval
    normalizer, draft_normalizer = stats[1], stats[5]
    drafted = children_of(nodes, node)
    usable = usable & drafted
    removed = rejected_ids(walk, tokens)
    cells = cells_of(tokens, request, is_odd)
    accepted = tl.full((), NO_CHILD, tl.int32)
    next_mode = tl.full((), DONE, tl.int32)
    if READS_DRAFT:
        if temperature == 0:
            accepted = first_of(columns, usable & (target_probs > 0))
        elif SHARES_DISCOUNT:
            num_children = tl.sum(usable.to(tl.int32), axis=0)
            if (num_children > 0) & (mode != WEIGH):
                is_found = num_children == 1
                if mode == READ:
                    low, high = low * 0.0 + 1.0, num_children.to(tl.float64)
                else:
                    width = high - low
                    low, high = next_interval(
                        walk, tokens, rows, request, num_children, interval, is_odd, normalizer, draft_normalizer,
                        CHUNKS_PADDED,
                    )  # fmt: skip
                    # sums that are no numbers, which nothing should lead to, end the search too
                    is_found = (high - low <= low * TOLERANCE) | ((high - low < 0.5 * width) == 0)
                if is_found:
                    rho = 0.5 * (low + high)
                    accepted = first_of(columns, usable & (uniform_numbers * (rho * draft_probs) < target_probs))
                if accepted == NO_CHILD:
                    next_mode = tl.where(is_found, WEIGH, FIND_RATIO)
        else:
            mass, rest = factor * 0.0 + 1.0, factor * 0.0 + 1.0
            if mode != READ:
                masses = load_sums(walk.masses, cells, rows.num_chunks, CHUNKS_PADDED)
                mass = tl.sum(masses, axis=0) * reciprocal(normalizer)
            if IS_DISTINCT:
                rest = 1.0 - tl.sum(tl.where(usable & (columns <= before), draft_probs, 0.0), axis=0)
                if mode == WEIGH_REST:
                    rests = load_sums(walk.rests, cells, rows.num_chunks, CHUNKS_PADDED)
                    rest = tl.sum(rests, axis=0) * reciprocal(draft_normalizer)
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
                    tl.store(removed + num_removed + columns * 0, token_ids.to(tl.int64), mask=columns == place)
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
    return accepted, next_mode, usable, before, factor, num_removed, low, high
