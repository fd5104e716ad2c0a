"""Traversal from node to node, in one program of a request, until rows must be read: see kernels.traversal_step.

The nodes above the one at hand are a stack; a vector has an entry for each of its levels, 0 for the context.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .addresses import draft_row
from .conclude import load_stats
from .decide import entry
from .device_streams import BONUS, RESIDUAL, uniform
from .tree_children import (
    NO_CHILD,
    SMALLEST_REST,
    accept_uniforms,
    first_child,
    first_of,
    judge_children,
    load_children,
)
from .tree_decide import MOST_GONE, load_draft_stats, load_sums
from .tree_emit import emit
from .tree_weigh import open_node

BEGIN: tl.constexpr = tl.constexpr(0)
WEIGH: tl.constexpr = tl.constexpr(1)
WEIGH_REST: tl.constexpr = tl.constexpr(2)
"""WEIGH, and the sum D of the draft row without the deleted children."""
WEIGH_LAST: tl.constexpr = tl.constexpr(3)
"""Of the node that was accepted."""
DONE: tl.constexpr = tl.constexpr(4)
GOES_ON: tl.constexpr = tl.constexpr(5)


@triton.jit
def _put(values, columns, level, value):
    """The vector with another entry at a level."""
    return tl.where(columns == level, value, values)


@triton.jit
def _load_level(field, at, inside, other):
    return tl.load(field + at, mask=inside, other=other, cache_modifier=".cg")


@triton.jit
def _judge_node(
    target, draft, tokens, temperature, count, slot, rows, walk, request, node, columns,
    READS_DRAFT: tl.constexpr, IS_DISTINCT: tl.constexpr,
):  # fmt: skip
    """A node and its children: (first child or -1, the tokens' ids, which are children, maximum, normalizer and
    threshold of its row, its argmax, those of the draft row, what `judge_children` finds)."""
    row = request.to(tl.int64) * (tokens.width + 1) + node
    first = first_child(tokens, walk, request, node, count, columns)
    token_ids, _, drafted = load_children(tokens, walk, request, node, count, columns)
    maximum, normalizer, threshold = load_stats(rows, row)
    argmax = tl.load(rows.argmax + row, cache_modifier=".cg")
    draft_stats = (maximum, normalizer, threshold)
    if READS_DRAFT:
        _, draft_at = draft_row(draft, slot, tl.maximum(first, 0))
        draft_stats = load_draft_stats(draft, draft_at, (first >= 0) & (temperature != 0))
    judged = judge_children(
        target, draft, tokens, temperature, request, slot, node, first, token_ids, drafted, columns,
        (maximum, normalizer, threshold, argmax), draft_stats, READS_DRAFT, IS_DISTINCT,
    )  # fmt: skip
    return first, token_ids, drafted, (maximum, normalizer, threshold), argmax, draft_stats, judged


@triton.jit
def go_on(
    target, draft, tokens, temperature, count, stream, slot, rows, walk, state, output, request, mode, columns,
    FIRST: tl.constexpr, READS_DRAFT: tl.constexpr, IS_DISTINCT: tl.constexpr, TRUNCATED: tl.constexpr,
    CHUNK: tl.constexpr, CHUNKS_PADDED: tl.constexpr, WIDTH_PADDED: tl.constexpr,
):  # fmt: skip
    """Take in what the step has weighed, walk on, and leave what the next step weighs; or draw the next token.

    Args:
        mode: BEGIN, or what the step has weighed.
        columns: [WIDTH_PADDED], draft tokens and levels alike.
    """
    whole_row = request.to(tl.int64) * (tokens.width + 1)
    removed_at = request.to(tl.int64) * tokens.width
    at, inside = whole_row + columns, columns <= tokens.width
    nodes = tl.full((WIDTH_PADDED,), 0, tl.int32)
    places = tl.full((WIDTH_PADDED,), -1, tl.int32)
    begins = tl.full((WIDTH_PADDED,), 0, tl.int32)
    chances = tl.full((WIDTH_PADDED,), 1.0, tl.float64)
    kappas = tl.full((WIDTH_PADDED,), 1.0, tl.float64)
    factors = tl.full((WIDTH_PADDED,), 0.0, tl.float64)
    rests = tl.full((WIDTH_PADDED,), 1.0, tl.float64)
    weights = tl.full((WIDTH_PADDED,), 0.0, tl.float64)
    laws = tl.full((WIDTH_PADDED,), 1.0, tl.float64)
    level = tl.full((), 0, tl.int32)
    num_removed = tl.full((), 0, tl.int32)
    is_weighed = mode == WEIGH_LAST
    is_certain = temperature == 0
    if not READS_DRAFT:
        is_certain = temperature == temperature
    if not FIRST:
        level = tl.load(state.levels + request, cache_modifier=".cg")
        num_removed = tl.load(state.num_removed + request, cache_modifier=".cg")
        nodes = _load_level(state.stack_nodes, at, inside, 0)
        places = _load_level(state.stack_places, at, inside, -1)
        begins = _load_level(state.stack_begins, at, inside, 0)
        chances = _load_level(state.chances, at, inside, 1.0)
        kappas = _load_level(state.kappas, at, inside, 1.0)
        factors = _load_level(state.stack_factors, at, inside, 0.0)
        rests = _load_level(state.rests, at, inside, 1.0)
        weights = _load_level(state.weights, at, inside, 0.0)
        laws = _load_level(state.laws, at, inside, 1.0)
        if READS_DRAFT:
            if (mode == WEIGH) | (mode == WEIGH_REST):
                factor = tl.load(state.factors + request, cache_modifier=".cg")
                node = entry(nodes, columns, level)
                normalizer = load_stats(rows, whole_row + node)[1]
                masses = load_sums(walk.masses, request, rows.num_chunks, CHUNKS_PADDED)
                chance, kappa = entry(chances, columns, level), entry(kappas, columns, level)
                left = kappa * (tl.sum(masses, axis=0) / normalizer)
                whole = left + (1.0 - chance)
                if left > 0:
                    chances = _put(chances, columns, level, left / whole)
                    kappas = _put(kappas, columns, level, kappa / whole)
                    factors = _put(factors, columns, level, factor)
                    is_weighed = True
                elif whole > 0:
                    chances = _put(chances, columns, level, 0.0)
                    kappas = _put(kappas, columns, level, 0.0)
                if IS_DISTINCT:
                    if mode == WEIGH_REST:
                        sums = load_sums(walk.rests, request, rows.num_chunks, CHUNKS_PADDED)
                        first = first_child(tokens, walk, request, node, count, columns)
                        _, draft_at = draft_row(draft, slot, tl.maximum(first, 0))
                        draft_normalizer = load_draft_stats(draft, draft_at, first >= 0)[1]
                        rests = _put(rests, columns, level, tl.sum(sums, axis=0) / draft_normalizer)
    next_mode = tl.full((), GOES_ON, tl.int32)
    next_factor = tl.full((), 0.0, tl.float64)
    if mode == WEIGH_LAST:
        next_mode = tl.full((), DONE, tl.int32)
    while next_mode == GOES_ON:
        node, place = entry(nodes, columns, level), entry(places, columns, level)
        _, token_ids, _, stats, _, _, judged = _judge_node(
            target, draft, tokens, temperature, count, slot, rows, walk, request, node, columns, READS_DRAFT,
            IS_DISTINCT,
        )  # fmt: skip
        usable, target_probs, draft_probs = judged
        has_more = entry(rests, columns, level) >= SMALLEST_REST
        child = first_of(columns, usable & (columns > tl.where(has_more, place, tokens.width)))
        chance, kappa = entry(chances, columns, level), entry(kappas, columns, level)
        if child < NO_CHILD:
            token = entry(token_ids, columns, child)
            weight = entry(target_probs, columns, child)
            law = entry(draft_probs, columns, child)
            if is_certain:
                # a token that was deleted is not left
                earlier = usable & (columns <= place) & (token_ids == token)
                weight = tl.where(tl.sum(earlier.to(tl.int32), axis=0) > 0, 0.0, weight)
            else:
                weight = tl.maximum(weight - entry(factors, columns, level) * law, 0.0)
                law = law / entry(rests, columns, level)
            level += 1
            child_chance = tl.minimum(kappa * weight / law, 1.0)
            nodes = _put(nodes, columns, level, child + 1)
            places = _put(places, columns, level, -1)
            begins = _put(begins, columns, level, num_removed)
            chances = _put(chances, columns, level, child_chance)
            kappas = _put(kappas, columns, level, child_chance)
            factors = _put(factors, columns, level, 0.0)
            rests = _put(rests, columns, level, 1.0)
            weights = _put(weights, columns, level, weight)
            laws = _put(laws, columns, level, law)
            is_weighed = False
        else:
            passes = level == 0
            if level > 0:
                uniform_number = entry(accept_uniforms(stream, level - 1, columns), columns, node - 1)
                passes = uniform_number < chance
            if passes:
                needs_masses = (temperature != 0) & (stats[1] == stats[1]) & (is_weighed == 0)
                next_mode = tl.where(needs_masses, WEIGH_LAST, DONE)
                next_factor = entry(factors, columns, level)
            else:
                weight, law = entry(weights, columns, level), entry(laws, columns, level)
                num_removed = entry(begins, columns, level)
                token = tl.load(tokens.token_ids + request.to(tl.int64) * tokens.stride + node - 1)
                level -= 1
                is_weighed = False
                chance, kappa = entry(chances, columns, level), entry(kappas, columns, level)
                places = _put(places, columns, level, node - 1)
                if is_certain:
                    left = tl.maximum(chance - kappa * weight, 0.0)
                    whole = left + (1.0 - chance)
                    if left > 0:
                        chances = _put(chances, columns, level, left / whole)
                        kappas = _put(kappas, columns, level, kappa / whole)
                        tl.store(walk.removed + removed_at + num_removed, token)
                        num_removed += 1
                    elif whole > 0:
                        chances = _put(chances, columns, level, 0.0)
                        kappas = _put(kappas, columns, level, 0.0)
                elif kappa > 0:
                    rest = entry(rests, columns, level)
                    next_factor = entry(factors, columns, level) + 1.0 / (kappa * rest)
                    next_mode = tl.full((), WEIGH, tl.int32)
                    if IS_DISTINCT:
                        tl.store(walk.removed + removed_at + num_removed, token)
                        num_removed += 1
                        # law is q / D
                        rest = rest - law * rest
                        rests = _put(rests, columns, level, rest)
                        if rest < MOST_GONE:
                            next_mode = tl.full((), WEIGH_REST, tl.int32)
    node = entry(nodes, columns, level)
    if next_mode == DONE:
        tl.debug_barrier()
        _finish(
            target, draft, tokens, temperature, count, stream, slot, rows, walk, state, output, request, columns,
            nodes, level, entry(factors, columns, level), entry(begins, columns, level), num_removed,
            entry(places, columns, level), entry(rests, columns, level), is_weighed,
            READS_DRAFT, IS_DISTINCT, TRUNCATED, CHUNK, CHUNKS_PADDED, WIDTH_PADDED,
        )  # fmt: skip
    else:
        tl.store(state.levels + request, level)
        tl.store(state.num_removed + request, num_removed)
        tl.store(state.nodes + request, node)
        tl.store(state.first_children + request, first_child(tokens, walk, request, node, count, columns))
        tl.store(state.factors + request, next_factor)
        tl.store(state.begins + request, entry(begins, columns, level))
        tl.store(state.stack_nodes + at, nodes, mask=inside)
        tl.store(state.stack_places + at, places, mask=inside)
        tl.store(state.stack_begins + at, begins, mask=inside)
        tl.store(state.chances + at, chances, mask=inside)
        tl.store(state.kappas + at, kappas, mask=inside)
        tl.store(state.stack_factors + at, factors, mask=inside)
        tl.store(state.rests + at, rests, mask=inside)
        tl.store(state.weights + at, weights, mask=inside)
        tl.store(state.laws + at, laws, mask=inside)
    tl.store(state.modes + request, next_mode)


@triton.jit
def _finish(
    target, draft, tokens, temperature, count, stream, slot, rows, walk, state, output, request, columns, nodes, level,
    factor, begin, num_removed, place, rest, is_weighed,
    READS_DRAFT: tl.constexpr, IS_DISTINCT: tl.constexpr, TRUNCATED: tl.constexpr, CHUNK: tl.constexpr,
    CHUNKS_PADDED: tl.constexpr, WIDTH_PADDED: tl.constexpr,
):  # fmt: skip
    """Write the accepted path, and draw the token after it from the masses that were weighed last."""
    row = request.to(tl.int64)
    node = entry(nodes, columns, level)
    # level i + 1 holds the i-th accepted draft token
    accepted = (columns >= 1) & (columns <= level)
    tl.store(walk.path + row * tokens.width + columns - 1, (nodes - 1).to(tl.int64), mask=accepted)
    path_tokens = tl.load(tokens.token_ids + row * tokens.stride + nodes - 1, mask=accepted, other=-1)
    tl.store(output.token_ids + row * (tokens.width + 1) + columns - 1, path_tokens, mask=accepted)
    first, _, drafted, stats, argmax, draft_stats, judged = _judge_node(
        target, draft, tokens, temperature, count, slot, rows, walk, request, node, columns, READS_DRAFT, IS_DISTINCT
    )
    # behind the last child that was deleted the row may have had no further token
    usable = judged[0] & (columns <= tl.where(rest >= SMALLEST_REST, tokens.width, place))
    flagged = (tl.sum((drafted & (usable == 0)).to(tl.int32), axis=0) > 0) | (stats[1] != stats[1])
    flagged = flagged | (tl.load(tokens.counts + request) > tokens.width)
    purpose = tl.where(tl.sum(drafted.to(tl.int32), axis=0) > 0, RESIDUAL, BONUS)
    seed, position, round_index = stream
    opened = open_node(
        target, draft, tokens, temperature, request, slot, node, first, factor, stats, draft_stats, READS_DRAFT
    )
    masses = load_sums(walk.masses, request, rows.num_chunks, CHUNKS_PADDED)
    removed = row * tokens.width + begin
    emit(
        target, draft, tokens, temperature, rows, walk, output, request, level, opened, walk.removed + removed,
        num_removed - begin, masses, argmax, uniform(seed, purpose, position + level, round_index), flagged, True,
        columns, READS_DRAFT, TRUNCATED, CHUNK, CHUNKS_PADDED,
    )  # fmt: skip
