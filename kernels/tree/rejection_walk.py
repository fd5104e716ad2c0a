"""Recursive rejection and K-SEQ of trees: the walk of every request in one launch, some programs for each.

    READ     the target row of the node that was accepted last: its maximum and normalizer
    WEIGH    what is left of it after the rejection of a child: the masses of [p - c q]+

Each step reads whole rows, a share with each program of the request, which then meet (kernels.launch.grid_barrier).
Every one of them tests the next child (kernels.tree.child_test), and so knows the request's next step without being
told: READ the child that was accepted, or WEIGH what its rejection leaves. With no child left the first one draws the
next token. Only the rows of nodes that the walk visits are read. Chunks are summed each for itself, so that no token
depends on the number of programs.

    rejected children x_1 .. x_k with laws S_1 .. S_k leave   [p - c q]+ / M,   c <- c + M / D,  M <- sum [p - c q]+

with D = 1 for independent children, whose law is q, and D = 1 - q(x_1) - .. - q(x_{k-1}) for distinct ones, whose law
is q / D: a rejected x has [p - c q]+ = 0, so that one number c stands for all of them. One-hot children are tested
together from single probabilities. The reference twin is kernels.reference.recursive.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..chain.row_epilogue import is_padding, served_count, write_padding
from ..chain.sample_next import chunk_masses, load_chunks
from ..launch.grid_barrier import LATE, STRIDE, leave, meet
from ..random.device_streams import BONUS, RESIDUAL, load_stream, uniform
from ..rows.addresses import draft_row, draft_slot, row_address
from ..rows.chunks import read_group
from ..rows.token_mask import target_mask_row
from .child_test import DONE, FIND_RATIO, READ, WEIGH_REST, decide_step, node_stats
from .children import (
    NO_CHILD,
    accept_uniforms,
    children_of,
    compare_siblings,
    first_child,
    judge,
    load_node_logits,
    load_nodes,
    without_repeats,
)
from .kseq_ratio import weigh_at_ratios
from .residual import cells_of, load_sums, open_node, rejected_ids, weigh_share
from .sample import emit

ENDED: tl.constexpr = tl.constexpr(8)
"""Of a walk, added to the mode of its last step."""


@triton.jit
def _read_share(
    target, tokens, temperature, streams, rows, walk, output, request, node, draft_logits, compares, is_odd, program,
    num_programs,
    SUMS_DRAFTS: tl.constexpr, NUM_GROUPS: tl.constexpr, PARTS: tl.constexpr, CHUNK: tl.constexpr,
    GROUP: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """Read a program's share of the chunks of a node's target row, and of its draft row where that is summed too."""
    row_logits = row_address(target, tokens, request, node)
    mask_row = target_mask_row(target, tokens, request, node, True)
    num_groups = tl.full((), NUM_GROUPS, tl.int32)
    if SUMS_DRAFTS:
        num_groups = tl.where(compares, 2 * NUM_GROUPS, NUM_GROUPS)
    for group in tl.range(program, num_groups, num_programs, num_stages=1):
        part, at, allowed = group, row_logits, mask_row
        cells = cells_of(tokens, request, is_odd * (1 + SUMS_DRAFTS))
        if SUMS_DRAFTS:
            if group >= NUM_GROUPS:
                part, at, allowed = group - NUM_GROUPS, draft_logits, mask_row * 0 - 1
                cells += tokens.num_requests
        mask = (target.mask_words, target.mask_stride, target.num_mask_words, target.mask_token_ids, allowed)
        if temperature == 0:
            read_group(
                target, rows, walk, streams, output, at, mask, request, node, cells, temperature,
                part, False, False, True, 1, PARTS, CHUNK, GROUP, 1,
            )  # fmt: skip
        else:
            read_group(
                target, rows, walk, streams, output, at, mask, request, node, cells, temperature,
                part, False, False, False, 1, PARTS, CHUNK, GROUP, UNROLL,
            )  # fmt: skip


@triton.jit(do_not_specialize=["num_programs"])
def _rejection_walk_kernel(
    target, draft, tokens, temperatures, cutting, streams, rows, walk, output, num_programs,
    READS_DRAFT: tl.constexpr,
    SUMS_DRAFTS: tl.constexpr,
    IS_DISTINCT: tl.constexpr,
    SHARES_DISCOUNT: tl.constexpr,
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
    nodes = load_nodes(target, tokens, walk, request, count, columns)
    row = request.to(tl.int64)
    removed_at = rejected_ids(walk, tokens)
    if IS_DISTINCT and READS_DRAFT:
        compared = compare_siblings(target, tokens, walk, request, count, nodes, columns)
        nodes = without_repeats(nodes, compared[1], temperature)
    mode = tl.full((), READ, tl.int32)
    node = tl.full((), 0, tl.int32)
    level = tl.full((), 0, tl.int32)
    before = tl.full((), -1, tl.int32)
    first = first_child(nodes, node, columns)
    factor = tl.full((), 0.0, tl.float64)
    num_removed = tl.full((), 0, tl.int32)
    low = tl.full((), 0.0, tl.float64)
    high = tl.full((), 0.0, tl.float64)
    num_met = tl.full((), 0, tl.int32)
    maximum = tl.full((), 0.0, tl.float32)
    normalizer = tl.full((), 1.0, tl.float64)
    threshold = tl.full((), -float("inf"), tl.float32)
    argmax = tl.full((), -1, tl.int32)
    draft_maximum = tl.full((), 0.0, tl.float32)
    draft_normalizer = tl.full((), 1.0, tl.float64)
    draft_threshold = tl.full((), -float("inf"), tl.float32)
    usable = columns < 0
    target_probs = tl.full((WIDTH_PADDED,), 0.0, tl.float64)
    draft_probs = tl.full((WIDTH_PADDED,), 0.0, tl.float64)
    uniform_numbers = tl.full((WIDTH_PADDED,), 0.0, tl.float64)
    if count < 0:
        mode = tl.full((), ENDED, tl.int32)
    while mode < ENDED:
        is_odd = num_met % 2
        draft_logits, draft_at = target.logits, row * 0
        compares = False
        if READS_DRAFT:
            compares = (first >= 0) & (temperature != 0)
            draft_logits, draft_at = draft_row(draft, slot, tl.maximum(first, 0))
        if mode == READ:
            # what does not depend on the rows, while they are read
            drafted = children_of(nodes, node)
            node_logits = load_node_logits(
                target, draft, tokens, temperature, request, slot, nodes[0], drafted, columns * 0 + node,
                columns * 0 + tl.maximum(first, 0), READS_DRAFT,
            )  # fmt: skip
            uniform_numbers = accept_uniforms(load_stream(streams, request, True), level, columns)
            if not TRUNCATED:
                _read_share(
                    target, tokens, temperature, streams, rows, walk, output, request, node, draft_logits, compares,
                    is_odd, program, num_programs,
                    SUMS_DRAFTS, NUM_GROUPS, PARTS, CHUNK, GROUP, UNROLL,
                )  # fmt: skip
                num_met = meet(walk.arrivals + row * STRIDE, num_met, num_programs)
            maximum, normalizer, threshold, argmax, draft_maximum, draft_normalizer, draft_threshold = node_stats(
                draft, tokens, temperature, request, rows, node, draft_at, compares, is_odd,
                READS_DRAFT, SUMS_DRAFTS, TRUNCATED, CHUNKS_PADDED,
            )  # fmt: skip
            usable, target_probs, draft_probs = judge(
                node_logits, nodes[0], temperature, (maximum, normalizer, threshold, argmax),
                (draft_maximum, draft_normalizer, draft_threshold), READS_DRAFT,
            )  # fmt: skip
        else:
            # one thread has kept what was rejected
            tl.debug_barrier()
            stats = (maximum, normalizer, threshold)
            draft_stats = (draft_maximum, draft_normalizer, draft_threshold)
            weighs = True
            if SHARES_DISCOUNT:
                factor = 0.5 * (low + high)
                weighs = mode != FIND_RATIO
                if mode == FIND_RATIO:
                    opened = open_node(
                        target, draft, tokens, temperature, request, slot, node, first, factor, stats, draft_stats, True
                    )
                    for group in tl.range(program, NUM_GROUPS, num_programs, num_stages=1):
                        weigh_at_ratios(
                            target, draft, tokens, request, opened, stats, draft_stats, (low, high), rows, walk,
                            is_odd, group, TRUNCATED, PARTS, CHUNK, GROUP,
                        )  # fmt: skip
            if weighs:
                opened = open_node(
                    target, draft, tokens, temperature, request, slot, node, first, factor, stats, draft_stats,
                    READS_DRAFT,
                )  # fmt: skip
                weigh_share(
                    target, draft, opened, (removed_at, num_removed), rows, walk, cells_of(tokens, request, is_odd),
                    program, num_programs, mode == WEIGH_REST,
                    READS_DRAFT, TRUNCATED, IS_DISTINCT, NUM_GROUPS, PARTS, CHUNK, GROUP, UNROLL,
                )  # fmt: skip
            num_met = meet(walk.arrivals + row * STRIDE, num_met, num_programs)
        accepted, next_mode, usable, before, factor, num_removed, low, high = decide_step(
            tokens, temperature, rows, walk, request, nodes, (usable, target_probs, draft_probs), uniform_numbers,
            (maximum, normalizer, threshold, argmax, draft_maximum, draft_normalizer, draft_threshold),
            (mode, node, before, factor, num_removed), (low, high), is_odd, columns,
            READS_DRAFT, IS_DISTINCT, SHARES_DISCOUNT, TRUNCATED, CHUNKS_PADDED,
        )  # fmt: skip
        if accepted < NO_CHILD:
            is_accepted = columns == tl.where(program == 0, accepted, -1)
            here = columns * 0 + level
            tl.store(walk.path + row * tokens.width + here, columns.to(tl.int64), mask=is_accepted)
            tl.store(output.token_ids + row * (tokens.width + 1) + here, nodes[0].to(tl.int64), mask=is_accepted)
            next_mode = tl.full((), READ, tl.int32)
            node = accepted + 1
            level += 1
            before = tl.full((), -1, tl.int32)
            first = first_child(nodes, node, columns)
            factor = tl.full((), 0.0, tl.float64)
            low = tl.full((), 0.0, tl.float64)
            high = tl.full((), 0.0, tl.float64)
            num_removed = tl.full((), 0, tl.int32)
        mode = tl.where(next_mode == DONE, mode + ENDED, next_mode)
    leave(walk.arrivals + row * STRIDE, num_programs)
    if count >= 0:
        if program == 0:
            if SHARES_DISCOUNT:
                factor = 0.5 * (low + high)
            is_odd = (num_met + 1) % 2
            # after a step that weighed; else the chunks of the row as it was read
            masses = load_sums(walk.masses, cells_of(tokens, request, is_odd), rows.num_chunks, CHUNKS_PADDED)
            if not TRUNCATED:
                if mode == ENDED + READ:
                    chunks = load_chunks(rows, cells_of(tokens, request, is_odd * (1 + SUMS_DRAFTS)), CHUNKS_PADDED)
                    masses = chunk_masses(chunks, maximum, temperature)
            drafted = children_of(nodes, node)
            flagged = (tl.sum((drafted & (usable == 0)).to(tl.int32), axis=0) > 0) | (normalizer != normalizer)
            flagged = flagged | (tl.load(tokens.counts + request) > tokens.width) | (num_met >= LATE)
            purpose = tl.where(tl.sum(drafted.to(tl.int32), axis=0) > 0, RESIDUAL, BONUS)
            seed, position, round_index = load_stream(streams, request, True)
            opened = open_node(
                target, draft, tokens, temperature, request, slot, node, first, factor,
                (maximum, normalizer, threshold), (draft_maximum, draft_normalizer, draft_threshold), READS_DRAFT,
            )  # fmt: skip
            emit(
                target, draft, tokens, temperature, rows, walk, output, request, level, opened, removed_at,
                num_removed, masses, argmax, uniform(seed, purpose, position + level, round_index), flagged,
                mode != ENDED + READ, columns,
                READS_DRAFT, TRUNCATED, CHUNK, CHUNKS_PADDED,
            )  # fmt: skip
        elif num_met >= LATE:
            # the first one may not know
            tl.store(output.invalid + row, True)
    elif is_padding(count, cutting) & (program == 0):
        write_padding(target, tokens, output, request, count, WIDTH_PADDED)
        path = walk.path + row * tokens.width + columns
        tl.store(path, tl.full((WIDTH_PADDED,), -1, tl.int64), mask=columns < tokens.width)
