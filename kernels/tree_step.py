"""Recursive rejection of trees, a step of every request's walk with each launch (kernels.tree_walk).

    READ     the target row of the node that was accepted last: its maximum and normalizer
    WEIGH    what is left of it after the rejection of a child: the masses of [p - c q]+

Both read whole rows, a share with each program of the request; the last of them to finish tests the next child and
leaves the request's next step in memory: READ the child that was accepted, or WEIGH what its rejection leaves. With no
child left it draws the next token. Only the rows of nodes that the walk visits are read.

    rejected children x_1 .. x_k with laws S_1 .. S_k leave   [p - c q]+ / M,   c <- c + M / D,  M <- sum [p - c q]+

with D = 1 for independent children, whose law is q, and D = 1 - q(x_1) - .. - q(x_{k-1}) for distinct ones, whose law
is q / D: a rejected x has [p - c q]+ = 0, so that one number c stands for all of them. One-hot children are tested
together from single probabilities. The reference twin is kernels.reference.recursive.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from .addresses import draft_row, draft_slot, row_address
from .chunks import read_group
from .conclude import is_last, is_padding, load_stats, served_count, write_padding
from .device_streams import load_stream
from .kseq_ratio import weigh_at_ratios
from .token_mask import target_mask_row
from .tree_children import first_child
from .tree_decide import DONE, FIND_RATIO, READ, WEIGH, WEIGH_REST, conclude_step, load_draft_stats
from .tree_weigh import weigh_share


@triton.jit
def _tree_step_kernel(
    target, draft, tokens, temperatures, cutting, streams, rows, walk, state, following, output,
    FIRST: tl.constexpr,
    READS_DRAFT: tl.constexpr,
    SUMS_DRAFTS: tl.constexpr,
    IS_DISTINCT: tl.constexpr,
    IS_KSEQ: tl.constexpr,
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
    PROGRAMS: tl.constexpr = NUM_GROUPS * (1 + SUMS_DRAFTS)
    request = tl.program_id(0) // PROGRAMS
    group = tl.program_id(0) % PROGRAMS
    columns = tl.arange(0, WIDTH_PADDED)
    temperature = tl.load(temperatures + request)
    count = served_count(tokens, request, temperature, cutting, TRUNCATED)
    stream = load_stream(streams, request, True)
    slot = draft_slot(draft, request, True)
    mode = tl.full((), READ, tl.int32)
    node = tl.full((), 0, tl.int32)
    level = tl.full((), 0, tl.int32)
    before = tl.full((), -1, tl.int32)
    first = tl.full((), -1, tl.int32)
    factor = tl.full((), 0.0, tl.float64)
    num_removed = tl.full((), 0, tl.int32)
    if FIRST:
        first = first_child(tokens, walk, request, node, count, columns)
    else:
        if OVERLAPS:
            gdc_wait()
        is_present = count >= 0
        mode = tl.load(state.modes + request, mask=is_present, other=DONE, cache_modifier=".cg")
        node = tl.load(state.nodes + request, mask=is_present, other=0, cache_modifier=".cg")
        level = tl.load(state.levels + request, mask=is_present, other=0, cache_modifier=".cg")
        before = tl.load(state.places + request, mask=is_present, other=-1, cache_modifier=".cg")
        first = tl.load(state.first_children + request, mask=is_present, other=-1, cache_modifier=".cg")
        factor = tl.load(state.factors + request, mask=is_present, other=0.0, cache_modifier=".cg")
        num_removed = tl.load(state.num_removed + request, mask=is_present, other=0, cache_modifier=".cg")
    removed = (walk.removed + request.to(tl.int64) * tokens.width, num_removed)
    is_served = (count >= 0) & (mode != DONE)
    is_complete = False
    # of all target rows, where they are cut, else of the row at hand
    kept = request.to(tl.int64)
    if TRUNCATED:
        kept = kept * (tokens.width + 1) + node
    draft_at = request.to(tl.int64) * 0
    draft_logits = target.logits
    compares = False
    if READS_DRAFT:
        compares = (first >= 0) & (temperature != 0)
        draft_logits, draft_at = draft_row(draft, slot, tl.maximum(first, 0))
    if is_served & (mode == READ):
        if TRUNCATED:
            is_complete = group == 0
        else:
            cells = request.to(tl.int64)
            row_logits = row_address(target, tokens, request, node)
            mask_row = target_mask_row(target, tokens, request, node, True)
            num_arrivals = NUM_GROUPS
            part = group
            if SUMS_DRAFTS:
                num_arrivals = tl.where(compares, PROGRAMS, NUM_GROUPS)
                if group >= NUM_GROUPS:
                    row_logits = draft_logits
                    cells += tokens.num_requests
                    part = group - NUM_GROUPS
            mask = (target.mask_words, target.mask_stride, target.num_mask_words, target.mask_token_ids, mask_row)
            if group < num_arrivals:
                if temperature == 0:
                    read_group(
                        target, rows, walk, streams, output, row_logits, mask, request, node, cells, temperature,
                        part, "strict", True, 1, PARTS, CHUNK, GROUP, 1,
                    )  # fmt: skip
                else:
                    read_group(
                        target, rows, walk, streams, output, row_logits, mask, request, node, cells, temperature,
                        part, "strict", False, 1, PARTS, CHUNK, GROUP, UNROLL,
                    )  # fmt: skip
                is_complete = is_last(walk.arrivals + request, num_arrivals)
    if not FIRST:
        if is_served & (mode != READ) & (group < NUM_GROUPS):
            stats = load_stats(rows, kept)
            draft_stats = stats
            if READS_DRAFT:
                draft_stats = load_draft_stats(draft, draft_at, compares)
            weighs = mode != DONE
            if IS_KSEQ:
                weighs = mode == WEIGH
                if mode == FIND_RATIO:
                    weigh_at_ratios(
                        target, draft, tokens, temperature, request, slot, node, first, stats, draft_stats, rows, walk,
                        group, TRUNCATED, PARTS, CHUNK, GROUP,
                    )  # fmt: skip
            if weighs:
                weigh_share(
                    target, draft, tokens, temperature, request, slot, node, first, factor, stats, draft_stats, removed,
                    rows, walk, group, mode == WEIGH_REST,
                    READS_DRAFT, TRUNCATED, IS_DISTINCT, PARTS, CHUNK, GROUP, UNROLL,
                )  # fmt: skip
            is_complete = is_last(walk.arrivals + request, NUM_GROUPS)
    if is_complete:
        cursor = (mode, node, level, before, first, factor, num_removed)
        conclude_step(
            target, draft, tokens, temperature, count, stream, slot, rows, walk, following, output, request, cursor,
            kept, draft_at, compares, columns,
            FIRST, READS_DRAFT, SUMS_DRAFTS, IS_DISTINCT, IS_KSEQ, TRUNCATED, CHUNK, CHUNKS_PADDED,
        )  # fmt: skip
    elif (mode == DONE) & (count >= 0) & (group == 0):
        tl.store(following.modes + request, DONE)
    elif FIRST:
        if is_padding(count, cutting) & (group == 0):
            write_padding(target, tokens, output, request, count, WIDTH_PADDED)
            path = walk.path + request.to(tl.int64) * tokens.width + columns
            tl.store(path, tl.full((WIDTH_PADDED,), -1, tl.int64), mask=columns < tokens.width)
