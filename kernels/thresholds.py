"""The search for the threshold of a row that truncates, as it runs inside kernels.truncation.

Top-k and top-p ask for the same thing of different weights W, counts or masses exp((x - M) / T):

    threshold = the smallest t with W(tokens above t) < target         target = k, or top_p times the mass left by top-k

and min-p needs no search. What survives are the tokens at or above the largest of the three, ties included. The search:

1. one pass over the row: the maximum M, the mass S, and the largest logit that each thread has seen. The smallest of
   the 32 in a warp has some 1,000 tokens of a row at or above it: the guess where a first window begins. M and S also
   tell where the threshold would lie if the logits were normal;
2. unless that is far below the guess: another pass, over a row that is in the L2 cache by now, marks the groups of
   tokens that reach into the window: of 16 bytes each, or of two tokens in a short row. Its tokens are packed into a
   few registers of each thread (kernels.logit_window), and if the window holds the threshold, the search ends among
   them. Else the next window begins below it, as deep as the mean distance of the tokens above lets expect about as
   many again;
3. a row whose threshold lies too deep for that, such as a flat one at a high temperature, is searched by whole passes
   (kernels.row_select), one to four of them in most rows.

Every step of a search weighs the tokens above four probes at once. It divides the order of the values themselves, and
ends at an exact value of the row. The guesses affect time only. Top-k, top-p and min-p take turns at the same code,
because a program runs it once or twice, and fetching it costs time. The reference twin is kernels.reference.thresholds.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .device_weights import divisor, scale, weigh
from .logit_window import list_groups, load_groups, pack, unpack
from .radix_select import ordered_key, radix_select, summed, value_of
from .row_select import normal_quantile, scores_of_normal_row, select_of_row
from .row_words import load_logits
from .token_mask import only_allowed

WINDOWS: tl.constexpr = tl.constexpr(4)
"""That are tried before whole passes."""
ERROR: tl.constexpr = tl.constexpr(0.9)
"""Of the standard score of a threshold: rows of 3 x normal that keep 1,000 tokens are taken for that much flatter, one
in 200 for more (T = 0.7, V = 128,256)."""


@triton.jit
def midpoint(low, high):
    """floor((low + high) / 2) where the sum may not fit into 32 bits."""
    return (low >> 1) + (high >> 1) + (low & high & 1)


@triton.jit
def guess_of(maxima, THREADS: tl.constexpr):
    """Where a first window begins, float32; `maxima` are the largest logits that threads saw, [THREADS]."""
    return tl.max(tl.min(tl.reshape(maxima, (THREADS // 32, 32)), axis=1), axis=0)


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
def search_windows(
    row_logits, vocab_size, in_words, mask, guess, maximum, temperature, counting, target, least, scratch,
    SHIFT: tl.constexpr, LANES: tl.constexpr, GROUP: tl.constexpr, DEPTH: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """(whether it was found, key of the smallest logit with less than `target` above it, mass at or above it).

    Where it was not found: a key that it does not lie above, and the weight of the tokens above that key.

    Args:
        guess: where the first window begins, float32.
        counting: whether `target` is a number of tokens, else it is a mass; float64 either way.
        least: key that the answer does not lie below.
        scratch: of the logits' type, LANES // GROUP * DEPTH of them.
    """
    # Of as many groups as there is room for, the windows after the first should reach into about five in eight.
    WANTED: tl.constexpr = LANES // GROUP * DEPTH * 5 // 8
    listed = scratch.to(tl.pointer_type(tl.int16), bitcast=True)
    high, low = scale(temperature)
    # What pads a row is -inf: such a token is in no window.
    least = tl.maximum(least, ordered_key(tl.full((), -3.4028234663852886e38, tl.float32), SHIFT))
    highest = ordered_key(maximum, SHIFT)
    lowest = tl.minimum(tl.maximum(ordered_key(guess, SHIFT), least), highest)
    # Of the tokens above the window.
    number = tl.full((), 0.0, tl.float64)
    mass = tl.full((), 0.0, tl.float64)
    total = tl.full((), 0.0, tl.float64)
    is_found = tl.full((), 0, tl.int32)
    key = highest
    windows = tl.full((), WINDOWS, tl.int32)
    while windows > 0:
        windows -= 1
        smallest, largest = value_of(lowest, SHIFT), value_of(highest, SHIFT)
        # All threads have done with the last window, with writing the list, with reading it, with writing the logits.
        tl.debug_barrier()
        num_groups = list_groups(
            row_logits, vocab_size, in_words, mask, smallest, largest, listed, LANES, GROUP, DEPTH, UNROLL
        )
        tl.debug_barrier()
        groups = load_groups(
            row_logits, vocab_size, in_words, mask, smallest, largest, listed, num_groups, LANES, GROUP, DEPTH
        )
        tl.debug_barrier()
        counts = pack(groups, smallest, scratch, LANES, GROUP, DEPTH)
        tl.debug_barrier()
        if tl.max(tl.maximum(num_groups, counts), axis=0) > 32 * DEPTH:
            lowest = midpoint(lowest, highest) + 1
            windows = tl.where(lowest > highest, 0, windows)
        else:
            logits = unpack(scratch, counts, LANES, GROUP, DEPTH)
            inside = logits > -float("inf")
            masses = weigh(logits, maximum, high, low)
            sums = tl.join(summed(inside.to(tl.float32)), summed(masses))
            sums = tl.sum(tl.join(sums, tl.join(summed(tl.where(inside, logits, 0.0)), summed(masses))), axis=0)
            column, row = tl.arange(0, 2)[:, None], tl.arange(0, 2)[None, :]
            number_here = tl.sum(tl.sum(tl.where((column == 0) & (row == 0), sums, 0.0), axis=1), axis=0)
            mass_here = tl.sum(tl.sum(tl.where((column == 1) & (row == 0), sums, 0.0), axis=1), axis=0)
            total_here = tl.sum(tl.sum(tl.where((column == 0) & (row == 1), sums, 0.0), axis=1), axis=0)
            above = tl.where(counting, number, mass)
            reached = above + tl.where(counting, number_here, mass_here)
            if reached >= target:
                weights = tl.where(counting, inside.to(tl.float32), masses)
                key = radix_select(logits, weights, above, target, lowest, highest, SHIFT)
                mass += tl.sum(summed(tl.where(logits >= value_of(key, SHIFT), masses, 0.0)), axis=0)
                is_found += 1
                windows = windows * 0
            else:
                number += number_here
                mass += mass_here
                total += total_here
                # The key below 0 is that of -0, which would let every 0 in again.
                highest = lowest - tl.where(lowest == 0, 2, 1)
                excess = total / number - smallest.to(tl.float64)
                depth = excess * tl.log(1.0 + WANTED / number)
                lowest = ordered_key((smallest.to(tl.float64) - depth).to(tl.float32), SHIFT)
                lowest = tl.minimum(tl.maximum(lowest, least), highest)
                # No token below weighs more than the smallest one here.
                weight = tl.where(counting, 1.0, weigh(smallest, maximum, high, low)).to(tl.float64)
                is_too_deep = target - reached > weight * (2 * WANTED)
                windows = tl.where(is_too_deep | (highest < least), 0, windows)
    return is_found, tl.where(is_found != 0, key, highest), tl.where((is_found != 0) | ~counting, mass, number)


@triton.jit
def lightest_key(maximum, mass, temperature, top_p, vocab_size, SHIFT: tl.constexpr):
    """A key that top-p's threshold does not lie below: the V tokens below one weigh at most V times as much as it."""
    # The factors keep clear of the rounding of sums.
    share = (1.0 - top_p.to(tl.float64)) * mass / vocab_size
    lightest = maximum.to(tl.float64) + divisor(temperature) * tl.log(share * (1.0 - 1e-5))
    return ordered_key((lightest - 1e-5 * (1.0 + tl.abs(lightest))).to(tl.float32), SHIFT)


@triton.jit
def min_p_threshold(maximum, temperature, min_p):
    """float32 logit of a token min_p times as probable as the most probable one, rounded up; -inf when min-p is off."""
    exact = maximum.to(tl.float64) + divisor(temperature) * tl.log(tl.maximum(min_p, 0.0).to(tl.float64))
    rounded = exact.to(tl.float32)
    bits = rounded.to(tl.int32, bitcast=True)
    above = (bits + tl.where(rounded >= 0, 1, -1)).to(tl.float32, bitcast=True)
    rounded = tl.where(rounded.to(tl.float64) < exact, above, rounded)
    return tl.where(min_p > 0, rounded, -float("inf"))


@triton.jit
def search(
    row_logits, vocab_size, in_words, mask, guess, maximum, mass, most, temperature, cuts, scratch,
    SHIFT: tl.constexpr, LANES: tl.constexpr, GROUP: tl.constexpr, DEPTH: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """(threshold, mass of the survivors) of a row that is truncated.

    `cuts` are addresses of top-k, top-p and min-p: what is loaded in its turn takes no registers before.
    """
    threshold = tl.full((), -float("inf"), tl.float32)
    for turn in tl.range(0, 3):
        counting = turn == 0
        floor = threshold
        top_k, top_p = tl.load(cuts[0], mask=counting, other=0), tl.load(cuts[1], mask=turn == 1, other=1.0)
        top_k = tl.where(top_k < most, top_k, 0)
        if turn == 2:
            min_p = tl.load(cuts[2])
            floor = min_p_threshold(maximum, temperature, min_p)
        if (top_k > 0) | (top_p < 1) | ((turn == 2) & (floor > threshold)):
            least = ordered_key(threshold, SHIFT)
            is_found = tl.full((), 0, tl.int32)
            if turn < 2:
                target = tl.where(counting, top_k.to(tl.float64), top_p.to(tl.float64) * mass)
                score, largest, deviation = scores_of_normal_row(mass, most, counting, target)
                depth = (largest - score) * deviation * divisor(temperature).to(tl.float32)
                key, weight = ordered_key(maximum, SHIFT), tl.full((), 0.0, tl.float64)
                # Unless it is surely so deep that many more tokens lie above than a window has room for.
                too_deep = -normal_quantile(tl.minimum(8.0 * (LANES // GROUP) / most.to(tl.float32), 0.5)) - ERROR
                if (score > too_deep) | (threshold > -float("inf")):
                    is_found, key, weight = search_windows(
                        row_logits, vocab_size, in_words, mask, tl.maximum(guess, threshold), maximum, temperature,
                        counting, target, least, scratch, SHIFT, LANES, GROUP, DEPTH, UNROLL,
                    )  # fmt: skip
                if is_found == 0:
                    if turn == 1:
                        least = tl.maximum(least, lightest_key(maximum, mass, temperature, top_p, vocab_size, SHIFT))
                    key, weight = select_of_row(
                        row_logits, vocab_size, in_words, mask, maximum, temperature, counting, target, least, key,
                        weight, maximum - depth, 0.12 * depth, SHIFT, LANES, GROUP,
                    )  # fmt: skip
                    is_found = ((weight > 0) & (turn == 1)).to(tl.int32)
                floor = value_of(key, SHIFT)
                mass = tl.where(is_found != 0, weight, mass)
                threshold = floor
            if is_found == 0:
                mass, _, threshold = row_sums(
                    row_logits, vocab_size, in_words, mask, maximum, floor, temperature, LANES, GROUP
                )
    return threshold, mass
