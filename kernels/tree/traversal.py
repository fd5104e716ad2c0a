"""Traversal from node to node, in every program of a request alike, until rows must be read: see
kernels.tree.traversal_walk.

The nodes above the one at hand are a stack: of each of its numbers a vector with an entry for each level, 0 for the
context. Those of the node at hand are no vectors.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..chain.accept_count import entry
from ..chain.row_epilogue import load_stats
from .child_test import MOST_GONE
from .children import NO_CHILD, SMALLEST_REST, accept_uniforms, children_of, first_of
from .residual import cells_of, load_sums, rejected_ids

BEGIN: tl.constexpr = tl.constexpr(0)
WEIGH: tl.constexpr = tl.constexpr(1)
WEIGH_REST: tl.constexpr = tl.constexpr(2)
"""WEIGH, and the sum D of the draft row without the deleted children."""
WEIGH_LAST: tl.constexpr = tl.constexpr(3)
"""Of the node that was accepted."""
DONE: tl.constexpr = tl.constexpr(4)
GOES_ON: tl.constexpr = tl.constexpr(5)


@triton.jit
def put(values, columns, level, value):
    """The vector with another entry at a level."""
    return tl.where(columns == level, value, values)


@triton.jit
def _at(values, columns, level):
    return tl.where(columns == level, values, tl.zeros_like(values))


@triton.jit
def _sums(
    node, place, begin, chance, kappa, factor, rest, weight, law,
    node_, place_, begin_, chance_, kappa_, factor_, rest_, weight_, law_,
):  # fmt: skip
    return (
        node + node_, place + place_, begin + begin_, chance + chance_, kappa + kappa_, factor + factor_,
        rest + rest_, weight + weight_, law + law_,
    )  # fmt: skip


@triton.jit
def start(columns):
    """(the numbers of the context: its node, the child deleted last, its first entry in TreeWalk.removed, a, kappa, c,
    D, w among its parent's weights, its probability under its law; the empty stack of the same)."""
    zero, one = tl.full((), 0.0, tl.float64), tl.full((), 1.0, tl.float64)
    none = tl.full((), 0, tl.int32)
    top = (none, none - 1, none, one, one, zero, one, zero, one)
    zeros, ones = tl.full(columns.shape, 0.0, tl.float64), tl.full(columns.shape, 1.0, tl.float64)
    nothing = tl.full(columns.shape, 0, tl.int32)
    return top, (nothing, nothing - 1, nothing, ones, ones, zeros, ones, zeros, ones)


@triton.jit
def go_on(
    tokens, temperature, stream, rows, walk, request, nodes, judged, mode, weighed_factor, weighed_stats, top, stack,
    level, num_removed, is_odd, columns,
    READS_DRAFT: tl.constexpr, IS_DISTINCT: tl.constexpr, CHUNKS_PADDED: tl.constexpr,
):  # fmt: skip
    """Take in what the step has weighed, and walk on to what the next step weighs.

    Args:
        judged: from kernels.tree.children.judge, of all draft tokens.
        mode: BEGIN, or what the step has weighed.
        weighed_factor: c of these weights.
        weighed_stats: normalizers of the target row and of the draft row.
        top, stack: as from `start`.
        level: depth of the node at hand.
        num_removed: entries of TreeWalk.removed.
        is_odd: of the meeting before which rows were weighed.
        columns: [WIDTH_PADDED], draft tokens and levels alike.

    Returns:
        (the next mode, c of what it weighs, level, number removed, top, stack), the last two flat.
    """
    token_ids = nodes[0]
    usable, target_probs, draft_probs = judged
    node, place, begin, chance, kappa, factor, rest, weight, law = top
    nodes_, places_, begins_, chances_, kappas_, factors_, rests_, weights_, laws_ = stack
    removed = rejected_ids(walk, tokens)
    is_weighed = mode == WEIGH_LAST
    is_certain = temperature == 0
    if not READS_DRAFT:
        is_certain = temperature == temperature
    if READS_DRAFT:
        if (mode == WEIGH) | (mode == WEIGH_REST):
            sums = load_sums(walk.masses, cells_of(tokens, request, is_odd), rows.num_chunks, CHUNKS_PADDED)
            left = kappa * (tl.sum(sums, axis=0) / weighed_stats[0])
            whole = left + (1.0 - chance)
            if left > 0:
                chance = left / whole
                kappa = kappa / whole
                factor = weighed_factor
                is_weighed = True
            elif whole > 0:
                chance = chance * 0.0
                kappa = kappa * 0.0
            if IS_DISTINCT:
                if mode == WEIGH_REST:
                    sums = load_sums(walk.rests, cells_of(tokens, request, is_odd), rows.num_chunks, CHUNKS_PADDED)
                    rest = tl.sum(sums, axis=0) / weighed_stats[1]
    next_mode = tl.full((), GOES_ON, tl.int32)
    next_factor = factor
    if mode == WEIGH_LAST:
        next_mode = tl.full((), DONE, tl.int32)
    while next_mode == GOES_ON:
        is_child = children_of(nodes, node) & usable
        child = first_of(columns, is_child & (columns > tl.where(rest >= SMALLEST_REST, place, tokens.width)))
        if child < NO_CHILD:
            child_weight = entry(target_probs, columns, child)
            child_law = entry(draft_probs, columns, child)
            if is_certain:
                # a token that was deleted is not left
                token = entry(token_ids, columns, child)
                earlier = is_child & (columns <= place) & (token_ids == token)
                child_weight = tl.where(tl.sum(earlier.to(tl.int32), axis=0) > 0, 0.0, child_weight)
            else:
                child_weight = tl.maximum(child_weight - factor * child_law, 0.0)
                child_law = child_law / rest
            nodes_, places_ = put(nodes_, columns, level, node), put(places_, columns, level, place)
            begins_ = put(begins_, columns, level, begin)
            chances_, kappas_ = put(chances_, columns, level, chance), put(kappas_, columns, level, kappa)
            factors_, rests_ = put(factors_, columns, level, factor), put(rests_, columns, level, rest)
            weights_, laws_ = put(weights_, columns, level, weight), put(laws_, columns, level, law)
            level += 1
            node, place, begin = child + 1, place * 0 - 1, num_removed
            chance = tl.minimum(kappa * child_weight / child_law, 1.0)
            kappa, factor, rest = chance, factor * 0.0, rest * 0.0 + 1.0
            weight, law = child_weight, child_law
            is_weighed = False
        else:
            passes = level == 0
            if level > 0:
                passes = accept_uniforms(stream, level - 1, node - 1) < chance
            if passes:
                row = request.to(tl.int64) * (tokens.width + 1) + node
                normalizer = load_stats(rows, row)[1]
                needs_masses = (temperature != 0) & (normalizer == normalizer) & (is_weighed == 0)
                next_mode = tl.where(needs_masses, WEIGH_LAST, DONE)
                next_factor = factor
            else:
                deleted, deleted_weight, deleted_law = node - 1, weight, law
                num_removed = begin
                level -= 1
                # one reduction for all of them
                node, place, begin, chance, kappa, factor, rest, weight, law = tl.reduce(
                    (
                        _at(nodes_, columns, level), _at(places_, columns, level), _at(begins_, columns, level),
                        _at(chances_, columns, level), _at(kappas_, columns, level), _at(factors_, columns, level),
                        _at(rests_, columns, level), _at(weights_, columns, level), _at(laws_, columns, level),
                    ),
                    0, _sums,
                )  # fmt: skip
                place = deleted
                is_weighed = False
                if is_certain:
                    left = tl.maximum(chance - kappa * deleted_weight, 0.0)
                    whole = left + (1.0 - chance)
                    if left > 0:
                        chance = left / whole
                        kappa = kappa / whole
                        tl.store(removed + num_removed + columns * 0, token_ids.to(tl.int64), mask=columns == deleted)
                        num_removed += 1
                    elif whole > 0:
                        chance = chance * 0.0
                        kappa = kappa * 0.0
                elif kappa > 0:
                    next_factor = factor + 1.0 / (kappa * rest)
                    next_mode = tl.full((), WEIGH, tl.int32)
                    if IS_DISTINCT:
                        tl.store(removed + num_removed + columns * 0, token_ids.to(tl.int64), mask=columns == deleted)
                        num_removed += 1
                        # the law is q / D
                        rest = rest - deleted_law * rest
                        if rest < MOST_GONE:
                            next_mode = tl.full((), WEIGH_REST, tl.int32)
    return (
        next_mode, next_factor, level, num_removed,
        node, place, begin, chance, kappa, factor, rest, weight, law,
        nodes_, places_, begins_, chances_, kappas_, factors_, rests_, weights_, laws_,
    )  # fmt: skip
