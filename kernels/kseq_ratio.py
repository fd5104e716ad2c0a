"""The discount rho that K-SEQ gives the children of a node: the root of an equation over whole rows.

    rho = 1 + y + .. + y^(n-1),   y^n = M(rho) = sum [p - rho q]+,   n children

M falls, so that there is one root; it lies in [1, n]. A step weighs M and its slope at POINTS candidates, which are
spread over an interval with the root. M is convex: between two candidates it lies above both tangents and below the
chord, and the roots of these bound the next interval, which is at most 1 / (POINTS - 1) as wide. Three steps are
common; `num_ratio_steps` always suffice. The reference twin is kernels.reference.several_drafts.kseq_ratio.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .decide import entry
from .residual_weights import draft_weights, target_weights
from .tree_weigh import LARGEST_RATIO, open_node

POINTS: tl.constexpr = tl.constexpr(8)
"""Candidates that a step weighs."""
GRID: tl.constexpr = tl.constexpr(128)
"""Numbers among which the ends of the next interval are chosen."""
TOLERANCE: tl.constexpr = tl.constexpr(2.0**-20)
"""Width of the last interval as a share of rho, which is its middle: the law of the output is off by half as much at
most (kernels.reference.kseq), and rounding in float32 moves rho by a tenth of it."""


def num_ratio_steps(num_children: int) -> int:
    """Steps after which the discount of so many children is known; none for one, which has 1."""
    width, steps = float(num_children - 1), 0
    while width > TOLERANCE.value:
        width, steps = width / (POINTS.value - 1), steps + 1
    return steps


@triton.jit
def _added(sums, values, PARTS: tl.constexpr, LANES: tl.constexpr, GROUP: tl.constexpr):
    """[PARTS, LANES] float64 sums and the values of a step, of which each thread holds GROUP."""
    return sums + tl.sum(tl.reshape(values, (PARTS, LANES, GROUP)), axis=2).to(tl.float64)


@triton.jit
def weigh_at_ratios(
    target, draft, tokens, temperature, request, slot, node, first, stats, draft_stats, rows, walk, group,
    TRUNCATED: tl.constexpr, PARTS: tl.constexpr, CHUNK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Leave M of a program's chunks at each candidate in the walk's memory, and what q has where p > rho q, its slope.

    Arguments as of kernels.tree_weigh.
    """
    LANES: tl.constexpr = 32
    STEP: tl.constexpr = LANES * GROUP
    one = tl.full((), 1.0, tl.float64)
    opened = open_node(target, draft, tokens, temperature, request, slot, node, first, one, stats, draft_stats, True)
    chunks = group * PARTS + tl.arange(0, PARTS)
    offsets = chunks[:, None] * CHUNK + tl.arange(0, STEP)[None, :]
    none = tl.full((PARTS, LANES), 0.0, tl.float64)
    # of each of the POINTS candidates, which take the place of the first in turn
    masses = (none, none, none, none, none, none, none, none)
    slopes = masses
    ratios = masses
    for point in tl.static_range(POINTS):
        ratio = tl.load(walk.ratios + request * POINTS + point, cache_modifier=".cg") * stats[1] / draft_stats[1]
        ratios = ratios[1:] + (tl.minimum(ratio, LARGEST_RATIO).to(tl.float32),)
    for step in tl.range(0, CHUNK, STEP, num_stages=1):
        weights = target_weights(target, opened, offsets + step, TRUNCATED)
        covered = draft_weights(target, draft, opened, offsets + step, TRUNCATED)
        for point in tl.static_range(POINTS):
            left = tl.fma(-covered, ratios[point], weights)
            above = tl.where(left > 0, covered, 0.0)
            masses = masses[1:] + (_added(masses[0], tl.maximum(left, 0.0), PARTS, LANES, GROUP),)
            slopes = slopes[1:] + (_added(slopes[0], above, PARTS, LANES, GROUP),)
    for point in tl.static_range(POINTS):
        cells = (point * tokens.num_requests + request).to(tl.int64) * rows.num_chunks + chunks
        inside = chunks < rows.num_chunks
        tl.store(walk.ratio_masses + cells, tl.sum(masses[point], axis=1), mask=inside)
        tl.store(walk.ratio_slopes + cells, tl.sum(slopes[point], axis=1), mask=inside)


@triton.jit
def _ratio_at(left, num_children):
    """1 + y + .. + y^(n-1) with y^n = M, of a vector."""
    root = tl.exp(tl.log(tl.maximum(left, 1e-300)) / num_children)
    ratio = root * 0.0 + 1.0
    for _ in range(1, num_children):
        ratio = ratio * root + 1.0
    return ratio


@triton.jit
def _spread(walk, request, low, high):
    """Leave the next candidates, the first and the last at the ends of an interval."""
    points = tl.arange(0, POINTS)
    tl.store(walk.ratios + request * POINTS + points, low + (high - low) * (points.to(tl.float64) / (POINTS - 1)))


@triton.jit
def next_ratio(
    walk, tokens, rows, request, num_children, is_new, normalizer, draft_normalizer, CHUNKS_PADDED: tl.constexpr
):
    """(rho, whether it is known); else the candidates are left of which the next step weighs M.

    Args:
        num_children: n, 1 or more.
        is_new: nothing has been weighed yet.
        normalizer, draft_normalizer: of the two rows.
    """
    rho = tl.full((), 1.0, tl.float64)
    is_known = num_children == 1
    if is_new:
        _spread(walk, request, rho, num_children.to(tl.float64))
    else:
        points, chunks = tl.arange(0, POINTS), tl.arange(0, CHUNKS_PADDED)
        cells = (points * tokens.num_requests + request).to(tl.int64)[:, None] * rows.num_chunks + chunks[None, :]
        inside = (chunks < rows.num_chunks)[None, :] & (points >= 0)[:, None]
        masses = tl.load(walk.ratio_masses + cells, mask=inside, other=0.0, cache_modifier=".cg")
        slopes = tl.load(walk.ratio_slopes + cells, mask=inside, other=0.0, cache_modifier=".cg")
        masses, slopes = tl.sum(masses, axis=1) / normalizer, tl.sum(slopes, axis=1) / draft_normalizer
        ratios = tl.load(walk.ratios + request * POINTS + points, cache_modifier=".cg")
        is_below = ratios <= _ratio_at(masses, num_children)
        place = tl.minimum(tl.max(tl.where(is_below, points, 0), axis=0), POINTS - 2)
        low, high = entry(ratios, points, place), entry(ratios, points, place + 1)
        low_mass, high_mass = entry(masses, points, place), entry(masses, points, place + 1)
        low_slope, high_slope = entry(slopes, points, place), entry(slopes, points, place + 1)
        share = tl.arange(0, GRID).to(tl.float64) / (GRID - 1)
        at = low + (high - low) * share
        beneath = tl.maximum(low_mass - low_slope * (at - low), high_mass + high_slope * (high - at))
        above = low_mass + (high_mass - low_mass) * share
        new_low = tl.max(tl.where(at <= _ratio_at(beneath, num_children), at, low), axis=0)
        new_high = tl.min(tl.where(at >= _ratio_at(above, num_children), at, high), axis=0)
        new_high = tl.maximum(new_low, new_high)
        rho = 0.5 * (new_low + new_high)
        is_known = new_high - new_low <= new_low * TOLERANCE
        _spread(walk, request, new_low, new_high)
    return rho, is_known
