"""The discount rho that K-SEQ gives the children of a node: the root of an equation over whole rows.

    rho = 1 + y + .. + y^(n-1),   y^n = M(rho) = sum [p - rho q]+,   n children

M falls, so that there is one root; it lies in [1, n]. A step weighs M and its slope at POINTS candidates, which are
spread over an interval with the root. M is convex: between two candidates it lies above both tangents and below the
chord, and the roots of these bound the next interval, which is at most 1 / (POINTS - 1) as wide. A few steps
are common. The reference twin is kernels.reference.several_drafts.kseq_ratio.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..chain.accept_count import entry
from ..chain.residual import draft_weights, target_weights
from ..rows.softmax_weights import reciprocal
from .residual import LARGEST_RATIO, cells_of

POINTS: tl.constexpr = tl.constexpr(4)
"""Candidates that a step weighs."""
GRID: tl.constexpr = tl.constexpr(128)
"""Numbers among which the ends of the next interval are chosen."""
TOLERANCE: tl.constexpr = tl.constexpr(2.0**-20)
"""Width of the last interval as a share of rho, which is its middle: the law of the output is off by half as much at
most (kernels.reference.kseq), and rounding in float32 moves rho by a tenth of it."""


@triton.jit
def _added(sums, values, PARTS: tl.constexpr, LANES: tl.constexpr, GROUP: tl.constexpr):
    """[PARTS, LANES] float64 sums and the values of a step, of which each thread holds GROUP."""
    return sums + tl.sum(tl.reshape(values, (PARTS, LANES, GROUP)), axis=2).to(tl.float64)


@triton.jit
def _candidate(interval, point):
    """A candidate of an interval (low, high), whose ends are the first and the last."""
    return interval[0] + (interval[1] - interval[0]) * (point * (1.0 / (POINTS - 1)))


@triton.jit
def weigh_at_ratios(
    target, draft, tokens, request, opened, stats, draft_stats, interval, rows, walk, is_odd, group,
    TRUNCATED: tl.constexpr, PARTS: tl.constexpr, CHUNK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Leave M of a group of chunks at each candidate in the walk's memory, and what q has where p > rho q, its slope.

    Args:
        opened: from kernels.tree.residual.open_node.
        interval: (low, high).
        is_odd, group: as of kernels.tree.residual.weigh_share.
    """
    LANES: tl.constexpr = 32
    STEP: tl.constexpr = LANES * GROUP
    chunks = group * PARTS + tl.arange(0, PARTS)
    offsets = chunks[:, None] * CHUNK + tl.arange(0, STEP)[None, :]
    none = tl.full((PARTS, LANES), 0.0, tl.float64)
    # of each of the POINTS candidates, which take the place of the first in turn
    masses = (none, none, none, none)
    slopes = masses
    negated = masses  # -k of each
    scale = stats[1] * reciprocal(draft_stats[1])
    for point in tl.static_range(POINTS):
        ratio = _candidate(interval, point) * scale
        negated = negated[1:] + (-tl.minimum(ratio, LARGEST_RATIO).to(tl.float32),)
    # a number that the compiler cannot know: all steps side by side would take more registers than there are
    end = tl.where(group >= 0, CHUNK, 0)
    for step in tl.range(0, end, STEP, num_stages=1):
        weights = target_weights(target, opened, offsets + step, TRUNCATED)
        covered = draft_weights(target, draft, opened, offsets + step, TRUNCATED)
        for point in tl.static_range(POINTS):
            left = tl.fma(covered, negated[point], weights)
            above = tl.where(left > 0, covered, 0.0)
            masses = masses[1:] + (_added(masses[0], tl.maximum(left, 0.0), PARTS, LANES, GROUP),)
            slopes = slopes[1:] + (_added(slopes[0], above, PARTS, LANES, GROUP),)
    for point in tl.static_range(POINTS):
        cells = cells_of(tokens, request, is_odd * POINTS + point) * rows.num_chunks + chunks
        inside = chunks < rows.num_chunks
        tl.store(walk.ratio_masses + cells, tl.sum(masses[point], axis=1), mask=inside)
        tl.store(walk.ratio_slopes + cells, tl.sum(slopes[point], axis=1), mask=inside)


@triton.jit
def _ratio_at(left, num_children):
    """1 + y + .. + y^(n-1) with y^n = M, of a vector."""
    root = tl.exp(tl.log(tl.maximum(left, 1e-300)) * reciprocal(num_children.to(tl.float64)))
    ratio = root * 0.0 + 1.0
    for _ in range(1, num_children):
        ratio = ratio * root + 1.0
    return ratio


@triton.jit
def next_interval(
    walk, tokens, rows, request, num_children, interval, is_odd, normalizer, draft_normalizer,
    CHUNKS_PADDED: tl.constexpr,
):  # fmt: skip
    """(low, high) around the root within an interval at whose candidates M has been weighed.

    Args:
        num_children: n, 2 or more.
        normalizer, draft_normalizer: of the two rows.
    """
    points, chunks = tl.arange(0, POINTS), tl.arange(0, CHUNKS_PADDED)
    cells = cells_of(tokens, request, is_odd * POINTS + points)[:, None] * rows.num_chunks + chunks[None, :]
    inside = (chunks < rows.num_chunks)[None, :] & (points >= 0)[:, None]
    masses = tl.load(walk.ratio_masses + cells, mask=inside, other=0.0, cache_modifier=".cg")
    slopes = tl.load(walk.ratio_slopes + cells, mask=inside, other=0.0, cache_modifier=".cg")
    masses = tl.sum(masses, axis=1) * reciprocal(normalizer)
    slopes = tl.sum(slopes, axis=1) * reciprocal(draft_normalizer)
    ratios = _candidate(interval, points.to(tl.float64))
    is_below = ratios <= _ratio_at(masses, num_children)
    place = tl.minimum(tl.max(tl.where(is_below, points, 0), axis=0), POINTS - 2)
    low, high = entry(ratios, points, place), entry(ratios, points, place + 1)
    low_mass, high_mass = entry(masses, points, place), entry(masses, points, place + 1)
    low_slope, high_slope = entry(slopes, points, place), entry(slopes, points, place + 1)
    share = tl.arange(0, GRID).to(tl.float64) * (1.0 / (GRID - 1))
    at = low + (high - low) * share
    beneath = tl.maximum(low_mass - low_slope * (at - low), high_mass + high_slope * (high - at))
    above = low_mass + (high_mass - low_mass) * share
    new_low = tl.max(tl.where(at <= _ratio_at(beneath, num_children), at, low), axis=0)
    new_high = tl.min(tl.where(at >= _ratio_at(above, num_children), at, high), axis=0)
    return new_low, tl.maximum(new_low, new_high)
