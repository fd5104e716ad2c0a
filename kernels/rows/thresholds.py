"""The search for the threshold of a row that truncates, as it runs inside kernels.chain.truncation.

Top-k and top-p ask for the same thing of different weights W, counts or masses exp((x - M) / T):

    threshold = the smallest t with W(tokens above t) < target         target = k, or top_p times the mass left by top-k

and min-p needs no search. What survives are the tokens at or above the largest of the three, ties included. The search:

1. a sample of the row gives a bound, which most thresholds lie above (kernels.rows.threshold_estimate);
2. the pass over the row that sums its mass marks the groups of tokens that reach the bound, and they are listed;
3. their tokens are packed into a few registers of each thread (kernels.rows.candidates), and if the threshold is one of
   them, the search ends among them;
4. a row whose threshold lies below, such as a flat one at a high temperature, or with more tokens above the bound than
   there is room for, is searched by whole passes (kernels.rows.threshold_search), one to four of them in most rows.

Every step of a search weighs the tokens above four probes at once. It divides the order of the values themselves, and
ends at an exact value of the row. The bound affects time only. Top-k, top-p and min-p take turns at the same code,
because a program runs it once or twice, and fetching it costs time. The reference twin is kernels.reference.thresholds.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .candidates import pack_listed, unpack
from .radix_select import ordered_key, radix_select, summed, value_of
from .softmax_weights import divisor, scale, weigh
from .threshold_estimate import min_p_threshold
from .threshold_search import scores_of_normal_row, select_of_row
from .token_mask import only_allowed
from .unaligned import load_logits


@triton.jit
def row_sums(
    row_logits, vocab_size, in_words, mask, maximum, threshold, temperature, LANES: tl.constexpr, GROUP: tl.constexpr
):
    """(mass, moment sum exp(d / T) d, minimum) of the tokens at or above a threshold, by one pass."""
    THREADS: tl.constexpr = LANES // GROUP
    high, low = scale(temperature)
    masses = tl.full((THREADS,), 0.0, tl.float64)
    moments = tl.full((THREADS,), 0.0, tl.float64)
    minima = tl.full((THREADS,), float("inf"), tl.float32)
    for first in tl.range(0, vocab_size, LANES):
        offsets = first + tl.arange(0, LANES)
        values = load_logits(row_logits, offsets, vocab_size, in_words)
        values = only_allowed(values, offsets, vocab_size, mask, GROUP)
        logits = tl.reshape(values, (THREADS, GROUP))
        weights = tl.where(logits >= threshold, weigh(logits, maximum, high, low), 0.0)
        masses += summed(weights)
        moments += summed(tl.where(weights > 0, weights * (logits - maximum), 0.0))
        minima = tl.minimum(minima, tl.min(tl.where(logits >= threshold, logits, float("inf")), axis=1))
    return tl.sum(masses, axis=0), tl.sum(moments, axis=0), tl.min(minima, axis=0)


@triton.jit
def lightest_key(maximum, mass, temperature, top_p, vocab_size, SHIFT: tl.constexpr):
    """A key that top-p's threshold does not lie below: the V tokens below one weigh at most V times as much as it."""
    # The factors keep clear of the rounding of sums.
    share = (1.0 - top_p.to(tl.float64)) * mass / vocab_size
    lightest = maximum.to(tl.float64) + divisor(temperature) * tl.log(share * (1.0 - 1e-5))
    return ordered_key((lightest - 1e-5 * (1.0 + tl.abs(lightest))).to(tl.float32), SHIFT)


@triton.jit
def search(
    row_logits, vocab_size, in_words, mask, bound, num_groups, maximum, mass, most, temperature, cuts, scratch,
    SHIFT: tl.constexpr, LANES: tl.constexpr, GROUP: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """(threshold, mass of the survivors) of a row that is truncated.

    Args:
        bound: that the listed groups reach, float32.
        num_groups: [WARPS] int32, in the list of each warp.
        maximum: of the row, float32.
        mass: of the row, in units of the maximum, float64.
        most: tokens that can have mass.
        temperature: above 0.
        cuts: addresses of top-k, top-p and min-p: what is loaded in its turn takes no registers before.
        scratch: where the lists are, see `pack_listed`.
    """
    high, low = scale(temperature)
    is_packed = tl.max(num_groups, axis=0) <= 32 * DEPTH
    counts = num_groups
    if is_packed:
        counts = pack_listed(row_logits, vocab_size, in_words, mask, bound, num_groups, scratch, GROUP, DEPTH)
        is_packed = tl.max(counts, axis=0) <= 32 * DEPTH
    counts = tl.where(is_packed, counts, 0)
    threshold = tl.full((), -float("inf"), tl.float32)
    for turn in tl.range(0, 3):
        counting = turn == 0
        top_k, top_p = tl.load(cuts[0], mask=counting, other=0), tl.load(cuts[1], mask=turn == 1, other=1.0)
        top_k = tl.where(top_k < most, top_k, 0)
        floor = threshold
        if turn == 2:
            floor = min_p_threshold(maximum, temperature, tl.load(cuts[2]))
        if (top_k > 0) | (top_p < 1) | ((turn == 2) & (floor > threshold)):
            logits = unpack(scratch, counts, LANES, GROUP, DEPTH)
            logits = tl.where(logits >= floor, logits, -float("inf"))
            masses = weigh(logits, maximum, high, low)
            weights = tl.where(counting, (logits > -float("inf")).to(tl.float32), masses)
            reached = tl.sum(summed(weights), axis=0)
            target = tl.where(counting, top_k.to(tl.float64), top_p.to(tl.float64) * mass)
            least, key = ordered_key(threshold, SHIFT), ordered_key(maximum, SHIFT)
            lowest = ordered_key(bound, SHIFT)
            if is_packed & tl.where(turn == 2, floor >= bound, reached >= target):
                if turn < 2:
                    lowest = tl.maximum(lowest, least)
                    key = radix_select(logits, weights, reached * 0.0, target, lowest, key, SHIFT)
                    floor = value_of(key, SHIFT)
                else:
                    floor = tl.min(tl.min(tl.where(logits >= floor, logits, float("inf")), axis=1), axis=0)
                mass = tl.sum(summed(tl.where(logits >= floor, masses, 0.0)), axis=0)
                threshold = floor
            else:
                is_weighed = tl.full((), 0, tl.int32)
                if turn < 2:
                    key = tl.where(is_packed, lowest - 1, key)
                    if turn == 1:
                        least = tl.maximum(least, lightest_key(maximum, mass, temperature, top_p, vocab_size, SHIFT))
                    score, largest, deviation = scores_of_normal_row(mass, most, counting, target)
                    depth = (largest - score) * deviation * divisor(temperature).to(tl.float32)
                    key, reached = select_of_row(
                        row_logits, vocab_size, in_words, mask, maximum, temperature, counting, target, least, key,
                        reached, maximum - depth, 0.12 * depth, SHIFT, LANES, GROUP,
                    )  # fmt: skip
                    floor = value_of(key, SHIFT)
                    is_weighed = ((reached > 0) & (turn == 1)).to(tl.int32)
                if is_weighed != 0:
                    mass, threshold = reached, floor
                else:
                    mass, _, threshold = row_sums(
                        row_logits, vocab_size, in_words, mask, maximum, floor, temperature, LANES, GROUP
                    )
    return threshold, mass
