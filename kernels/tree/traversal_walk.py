"""Traversal verification of trees: the walk of every request in one launch, some programs for each.

The statistics of all target rows are known. A step WEIGHs what the deletion of a child leaves of its parent's row, a
share of it with each program of the request, which then meet (kernels.launch.grid_barrier). Every one of them goes on
from node to node (kernels.tree.traversal) until the next deletion, whose masses the next step weighs, or until a node
is accepted, whose masses are weighed too unless the step at hand did it. The first one draws the next token.

    a node whose chance is a has a P(x) = kappa w(x),  w = [p - c q]+,  at first kappa = a and c = 0
    child x:       chance min(1, kappa w(x) D / q(x))
    its deletion:  c <- c + 1 / (kappa D);  Z = kappa sum w;  a <- Z / (Z + 1 - a),  kappa <- kappa / (Z + 1 - a)

with D as in kernels.tree.rejection_walk. A child whose chance is 1 keeps it, whatever becomes of its own children, and
is never deleted; so a deleted x has w(x) = 0 from then on, and of distinct siblings, too, one number c stands for all.
One-hot children are tested from single probabilities, and nothing is weighed before a node is accepted. The reference
twin is kernels.reference.traversal.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..chain.row_epilogue import is_padding, load_stats, served_count, write_padding
from ..launch.grid_barrier import LATE, STRIDE, leave, meet
from ..random.device_streams import BONUS, RESIDUAL, load_stream, uniform
from ..rows.addresses import draft_row, draft_slot
from .child_test import load_draft_stats
from .children import (
    NO_NODE,
    SMALLEST_REST,
    children_of,
    compare_siblings,
    first_child,
    judge,
    load_node_logits,
    load_nodes,
    without_repeats,
)
from .residual import cells_of, load_sums, open_node, rejected_ids, weigh_share
from .sample import emit
from .traversal import BEGIN, DONE, WEIGH_REST, go_on, put, start


@triton.jit
def _judge_nodes(
    target, draft, tokens, temperature, request, slot, rows, walk, count, nodes, columns,
    READS_DRAFT: tl.constexpr, IS_DISTINCT: tl.constexpr,
):  # fmt: skip
    """(the nodes with what `without_repeats` makes of them; what kernels.tree.children.judge finds of all)."""
    firsts = columns
    if READS_DRAFT:
        firsts, repeats = compare_siblings(target, tokens, walk, request, count, nodes, columns)
        if IS_DISTINCT:
            nodes = without_repeats(nodes, repeats, temperature)
    token_ids, parents = nodes
    is_node = parents != NO_NODE
    above = tl.maximum(parents + 1, 0)
    node_logits = load_node_logits(
        target, draft, tokens, temperature, request, slot, token_ids, is_node, above, firsts, READS_DRAFT
    )
    row = request.to(tl.int64) * (tokens.width + 1) + above
    at = row * rows.stride
    stats = (
        tl.load(rows.maximum + at, mask=is_node, other=0.0),
        tl.load(rows.normalizer + at, mask=is_node, other=1.0),
        tl.load(rows.threshold + at, mask=is_node, other=0.0),
        tl.load(rows.argmax + row, mask=is_node, other=-1),
    )
    draft_stats = (stats[0], stats[1], stats[2])
    if READS_DRAFT:
        _, draft_at = draft_row(draft, slot, firsts)
        draft_stats = load_draft_stats(draft, draft_at, tl.where(is_node, temperature, 0.0) != 0)
    usable, target_probs, draft_probs = judge(node_logits, token_ids, temperature, stats, draft_stats, READS_DRAFT)
    return token_ids, parents, usable, target_probs, draft_probs


@triton.jit(do_not_specialize=["num_programs"])
def _traversal_walk_kernel(
    target, draft, tokens, temperatures, cutting, streams, rows, walk, output, num_programs,
    READS_DRAFT: tl.constexpr,
    IS_DISTINCT: tl.constexpr,
    TRUNCATED: tl.constexpr,
    NUM_GROUPS: tl.constexpr,
    PARTS: tl.constexpr,
    CHUNK: tl.constexpr,
    GROUP: tl.constexpr,
    UNROLL: tl.constexpr,
    CHUNKS_PADDED: tl.constexpr,
    WIDTH_PADDED: tl.constexpr,
):  # fmt: skip
    request = tl.program_id(0) // num_programs
    program = tl.program_id(0) % num_programs
    columns = tl.arange(0, WIDTH_PADDED)
    temperature = tl.load(temperatures + request)
    count = served_count(tokens, request, temperature, cutting, TRUNCATED)
    slot = draft_slot(draft, request, count >= 0)
    stream = load_stream(streams, request, True)
    nodes = load_nodes(target, tokens, walk, request, count, columns)
    token_ids, parents, usable, target_probs, draft_probs = _judge_nodes(
        target, draft, tokens, temperature, request, slot, rows, walk, count, nodes, columns, READS_DRAFT, IS_DISTINCT
    )
    nodes = (token_ids, parents)
    judged = (usable, target_probs, draft_probs)
    row = request.to(tl.int64)
    removed_at = rejected_ids(walk, tokens)
    mode = tl.full((), BEGIN, tl.int32)
    if count < 0:
        mode = tl.full((), DONE, tl.int32)
    weighed_factor = tl.full((), 0.0, tl.float64)
    level = tl.full((), 0, tl.int32)
    num_removed = tl.full((), 0, tl.int32)
    num_met = tl.full((), 0, tl.int32)
    top, stack = start(columns)
    node, place, begin, chance, kappa, factor, rest, weight, law = top
    nodes_, places_, begins_, chances_, kappas_, factors_, rests_, weights_, laws_ = stack
    while mode != DONE:
        is_odd = num_met % 2
        normalizer = tl.full((), 1.0, tl.float64)
        draft_normalizer = tl.full((), 1.0, tl.float64)
        if mode != BEGIN:
            # one thread has kept what was deleted
            tl.debug_barrier()
            first = first_child(nodes, node, columns)
            stats = load_stats(rows, row * (tokens.width + 1) + node)
            normalizer = stats[1]
            draft_stats = stats
            if READS_DRAFT:
                _, draft_at = draft_row(draft, slot, tl.maximum(first, 0))
                draft_stats = load_draft_stats(draft, draft_at, first >= 0)
                draft_normalizer = draft_stats[1]
            opened = open_node(
                target, draft, tokens, temperature, request, slot, node, first, weighed_factor, stats, draft_stats,
                READS_DRAFT,
            )  # fmt: skip
            weigh_share(
                target, draft, opened, (removed_at + begin, num_removed - begin), rows, walk,
                cells_of(tokens, request, is_odd), program, num_programs, mode == WEIGH_REST,
                READS_DRAFT, TRUNCATED, IS_DISTINCT, NUM_GROUPS, PARTS, CHUNK, GROUP, UNROLL,
            )  # fmt: skip
            num_met = meet(walk.arrivals + row * STRIDE, num_met, num_programs)
        (
            mode, weighed_factor, level, num_removed,
            node, place, begin, chance, kappa, factor, rest, weight, law,
            nodes_, places_, begins_, chances_, kappas_, factors_, rests_, weights_, laws_,
        ) = go_on(
            tokens, temperature, stream, rows, walk, request, nodes, judged, mode, weighed_factor,
            (normalizer, draft_normalizer), (node, place, begin, chance, kappa, factor, rest, weight, law),
            (nodes_, places_, begins_, chances_, kappas_, factors_, rests_, weights_, laws_), level, num_removed,
            is_odd, columns, READS_DRAFT, IS_DISTINCT, CHUNKS_PADDED,
        )  # fmt: skip
    leave(walk.arrivals + row * STRIDE, num_programs)
    if count >= 0:
        if program == 0:
            tl.debug_barrier()
            _finish(
                target, draft, tokens, temperature, stream, slot, rows, walk, output, request, columns, nodes, judged,
                put(nodes_, columns, level, node), node, level, factor, removed_at + begin, num_removed - begin, place,
                rest, (num_met + 1) % 2, num_met >= LATE,
                READS_DRAFT, TRUNCATED, CHUNK, CHUNKS_PADDED,
            )  # fmt: skip
        elif num_met >= LATE:
            # the first one may not know
            tl.store(output.invalid + row, True)
    elif is_padding(count, cutting) & (program == 0):
        write_padding(target, tokens, output, request, count, WIDTH_PADDED)
        path = walk.path + row * tokens.width + columns
        tl.store(path, tl.full((WIDTH_PADDED,), -1, tl.int64), mask=columns < tokens.width)


@triton.jit
def _finish(
    target, draft, tokens, temperature, stream, slot, rows, walk, output, request, columns, nodes, judged, path, node,
    level, factor, removed, num_removed, place, rest, is_odd, is_late,
    READS_DRAFT: tl.constexpr, TRUNCATED: tl.constexpr, CHUNK: tl.constexpr, CHUNKS_PADDED: tl.constexpr,
):  # fmt: skip
    """Write the accepted path, a node for each level, and draw the token after it from the masses weighed last."""
    row = request.to(tl.int64)
    # level i + 1 holds the i-th accepted draft token
    accepted = (columns >= 1) & (columns <= level)
    tl.store(walk.path + row * tokens.width + columns - 1, (path - 1).to(tl.int64), mask=accepted)
    path_tokens = tl.load(tokens.token_ids + row * tokens.stride + path - 1, mask=accepted, other=-1)
    tl.store(output.token_ids + row * (tokens.width + 1) + columns - 1, path_tokens, mask=accepted)
    drafted = children_of(nodes, node)
    first = first_child(nodes, node, columns)
    at = row * (tokens.width + 1) + node
    stats = load_stats(rows, at)
    argmax = tl.load(rows.argmax + at)
    draft_stats = stats
    if READS_DRAFT:
        _, draft_at = draft_row(draft, slot, tl.maximum(first, 0))
        draft_stats = load_draft_stats(draft, draft_at, first >= 0)
    # behind the last child that was deleted the row may have had no further token
    usable = judged[0] & (columns <= tl.where(rest >= SMALLEST_REST, tokens.width, place))
    flagged = (tl.sum((drafted & (usable == 0)).to(tl.int32), axis=0) > 0) | (stats[1] != stats[1])
    flagged = flagged | (tl.load(tokens.counts + request) > tokens.width) | is_late
    purpose = tl.where(tl.sum(drafted.to(tl.int32), axis=0) > 0, RESIDUAL, BONUS)
    seed, position, round_index = stream
    opened = open_node(
        target, draft, tokens, temperature, request, slot, node, first, factor, stats, draft_stats, READS_DRAFT
    )
    masses = load_sums(walk.masses, cells_of(tokens, request, is_odd), rows.num_chunks, CHUNKS_PADDED)
    emit(
        target, draft, tokens, temperature, rows, walk, output, request, level, opened, removed, num_removed, masses,
        argmax, uniform(seed, purpose, position + level, round_index), flagged, True, columns,
        READS_DRAFT, TRUNCATED, CHUNK, CHUNKS_PADDED,
    )  # fmt: skip
