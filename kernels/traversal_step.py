"""Traversal verification of trees, a deletion of every request's walk with each launch (kernels.tree_walk).

The statistics of all target rows are known. A step WEIGHs what the deletion of a child leaves of its parent's row, a
share of it with each program of the request; the last of them to finish goes on from node to node (kernels.traversal)
until the next deletion, whose masses the next step weighs, or until a node is accepted, whose masses are weighed too
unless the step at hand did it.

    a node whose chance is a has a P(x) = kappa w(x),  w = [p - c q]+,  at first kappa = a and c = 0
    child x:       chance min(1, kappa w(x) D / q(x))
    its deletion:  c <- c + 1 / (kappa D);  Z = kappa sum w;  a <- Z / (Z + 1 - a),  kappa <- kappa / (Z + 1 - a)

with D as in kernels.tree_step. A child whose chance is 1 keeps it, whatever becomes of its own children, and is never
deleted; so a deleted x has w(x) = 0 from then on, and of distinct siblings, too, one number c stands for all. One-hot
children are tested from single probabilities, and nothing is weighed before a node is accepted. The reference twin is
kernels.reference.traversal.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from .addresses import draft_row, draft_slot
from .conclude import is_last, is_padding, load_stats, served_count, write_padding
from .device_streams import load_stream
from .traversal import BEGIN, DONE, WEIGH_REST, go_on
from .tree_decide import load_draft_stats
from .tree_weigh import weigh_share


@triton.jit
def _traversal_step_kernel(
    target, draft, tokens, temperatures, cutting, streams, rows, walk, state, output,
    FIRST: tl.constexpr,
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
    OVERLAPS: tl.constexpr,
):  # fmt: skip
    if OVERLAPS:
        gdc_launch_dependents()
    request = tl.program_id(0) // NUM_GROUPS
    group = tl.program_id(0) % NUM_GROUPS
    columns = tl.arange(0, WIDTH_PADDED)
    temperature = tl.load(temperatures + request)
    count = served_count(tokens, request, temperature, cutting, TRUNCATED)
    stream = load_stream(streams, request, True)
    slot = draft_slot(draft, request, True)
    mode = tl.full((), BEGIN, tl.int32)
    is_complete = (count >= 0) & (group == 0)
    if not FIRST:
        if OVERLAPS:
            gdc_wait()
        # all programs of a step that weighs have read the state before the last of them writes it
        is_present = count >= 0
        mode = tl.load(state.modes + request, mask=is_present, other=DONE, cache_modifier=".cg")
        is_complete = False
        if is_present & (mode != DONE):
            node = tl.load(state.nodes + request, cache_modifier=".cg")
            first = tl.load(state.first_children + request, cache_modifier=".cg")
            factor = tl.load(state.factors + request, cache_modifier=".cg")
            begin = tl.load(state.begins + request, cache_modifier=".cg")
            num_removed = tl.load(state.num_removed + request, cache_modifier=".cg") - begin
            at = request.to(tl.int64) * tokens.width + begin
            removed = (walk.removed + at, num_removed)
            row = request.to(tl.int64) * (tokens.width + 1) + node
            stats = load_stats(rows, row)
            draft_stats = stats
            if READS_DRAFT:
                _, draft_at = draft_row(draft, slot, tl.maximum(first, 0))
                draft_stats = load_draft_stats(draft, draft_at, first >= 0)
            weigh_share(
                target, draft, tokens, temperature, request, slot, node, first, factor, stats, draft_stats, removed,
                rows, walk, group, mode == WEIGH_REST,
                READS_DRAFT, TRUNCATED, IS_DISTINCT, PARTS, CHUNK, GROUP, UNROLL,
            )  # fmt: skip
            is_complete = is_last(walk.arrivals + request, NUM_GROUPS)
    if is_complete:
        go_on(
            target, draft, tokens, temperature, count, stream, slot, rows, walk, state, output, request, mode, columns,
            FIRST, READS_DRAFT, IS_DISTINCT, TRUNCATED, CHUNK, CHUNKS_PADDED, WIDTH_PADDED,
        )  # fmt: skip
    if FIRST:
        if is_padding(count, cutting) & (group == 0):
            write_padding(target, tokens, output, request, count, WIDTH_PADDED)
            path = walk.path + request.to(tl.int64) * tokens.width + columns
            tl.store(path, tl.full((WIDTH_PADDED,), -1, tl.int64), mask=columns < tokens.width)
