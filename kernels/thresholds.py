"""The search for the threshold of a row that truncates, as it runs inside kernels.truncation.

Top-k and top-p ask for the same thing of different weights W, counts or masses exp((x - M) / T):

    threshold = the smallest t with W(tokens above t) < target         target = k, or top_p times the mass left by top-k

and min-p needs no search. What survives are the tokens at or above the largest of the three, ties included. The search:

1. one pass over the row: the maximum M, the mass S, and the largest logit of each of LANES interleaved columns;
2. the same search over those LANES values alone gives a lower bound, because they are part of the row; so does
   (1 - top_p) S / V, since the V tokens below a threshold cannot weigh more than V times the threshold;
3. a second pass, over a row that is in the L2 cache by now, collects the tokens at or above the bound, a few hundred to
   a few thousand; the search ends among them, in registers. A row with more candidates than a thread has room for, such
   as a flat one at a high temperature, is searched by whole passes instead, each of which leaves a fifth of the
   interval that the threshold lies in.

Searches divide the order of the values themselves, so that they end at an exact value of the row.
The reference twin is kernels.reference.thresholds.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.device_weights import divisor, scale, weigh


@triton.jit
def ordered_key(logits, SHIFT: tl.constexpr):
    """int32 that orders as the logits do; SHIFT drops the low bits that a 16-bit type does not have."""
    # Adding 0 makes -0 and 0 one value.
    bits = (logits + 0.0).to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)) >> SHIFT


@triton.jit
def value_of(key, SHIFT: tl.constexpr):
    """The logit, float32, that has this key."""
    bits = (key << SHIFT) | tl.where(key < 0, (1 << SHIFT) - 1, 0)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def midpoint(low, high):
    """floor((low + high) / 2) where the sum may not fit into 32 bits."""
    return (low >> 1) + (high >> 1) + (low & high & 1)


@triton.jit
def weight_above(keys, lowest, maximum, high, low, COUNTS: tl.constexpr, SHIFT: tl.constexpr):
    """Number or mass of the keys, [THREADS, n], above `lowest`: float32 in a row, float64 over the rows.

    Masses are worked out again from the keys every time, which leaves registers free.
    """
    weights = (keys > lowest).to(tl.float32)
    if not COUNTS:
        weights = tl.where(keys > lowest, weigh(value_of(keys, SHIFT), maximum, high, low), 0.0)
    return tl.sum(tl.sum(weights, axis=1).to(tl.float64), axis=0)


@triton.jit
def smallest_key(keys, target, lowest, highest, maximum, high, low, COUNTS: tl.constexpr, SHIFT: tl.constexpr):
    """The smallest t in lowest..highest with less than `target` above it, or `highest`; by bisection."""
    while lowest < highest:
        middle = midpoint(lowest, highest)
        if weight_above(keys, middle, maximum, high, low, COUNTS, SHIFT) < target:
            highest = middle
        else:
            lowest = middle + 1
    return highest


@triton.jit
def weights_above(
    row_logits, vocab_size, maximum, high, low, first_probe, second_probe, third_probe, fourth_probe,
    COUNTS: tl.constexpr, SHIFT: tl.constexpr, LANES: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Counts or masses of the tokens of a row above four keys, by one pass; float64 each."""
    THREADS: tl.constexpr = LANES // GROUP
    above_first = tl.full((THREADS,), 0.0, tl.float64)
    above_second = tl.full((THREADS,), 0.0, tl.float64)
    above_third = tl.full((THREADS,), 0.0, tl.float64)
    above_fourth = tl.full((THREADS,), 0.0, tl.float64)
    for first in tl.range(0, vocab_size, LANES):
        offsets = first + tl.arange(0, LANES)
        values = tl.load(row_logits + offsets, mask=offsets < vocab_size, other=-float("inf")).to(tl.float32)
        logits = tl.reshape(values, (THREADS, GROUP))
        keys = ordered_key(logits, SHIFT)
        weights = weigh(logits, maximum, high, low)
        if COUNTS:
            weights = weights * 0.0 + 1.0
        above_first += tl.sum(tl.where(keys > first_probe, weights, 0.0), axis=1).to(tl.float64)
        above_second += tl.sum(tl.where(keys > second_probe, weights, 0.0), axis=1).to(tl.float64)
        above_third += tl.sum(tl.where(keys > third_probe, weights, 0.0), axis=1).to(tl.float64)
        above_fourth += tl.sum(tl.where(keys > fourth_probe, weights, 0.0), axis=1).to(tl.float64)
    return (
        tl.sum(above_first, axis=0), tl.sum(above_second, axis=0),
        tl.sum(above_third, axis=0), tl.sum(above_fourth, axis=0),
    )  # fmt: skip


@triton.jit
def narrow(probe, above, target, lowest, highest):
    """The interval of keys that the answer lies in, after a look at the weights above one of them."""
    fits = above < target
    return tl.where(fits, lowest, tl.maximum(lowest, probe + 1)), tl.where(fits, tl.minimum(highest, probe), highest)


@triton.jit
def smallest_key_of_row(
    row_logits, vocab_size, maximum, high, low, target, lowest, highest,
    COUNTS: tl.constexpr, SHIFT: tl.constexpr, LANES: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """`smallest_key` over a whole row, with counts or masses; every pass leaves a fifth of the interval of keys."""
    lowest = lowest.to(tl.int64)
    highest = highest.to(tl.int64)
    while lowest < highest:
        width = highest - lowest
        first, second = lowest + width // 5, lowest + width * 2 // 5
        third, fourth = lowest + width * 3 // 5, lowest + width * 4 // 5
        above_first, above_second, above_third, above_fourth = weights_above(
            row_logits, vocab_size, maximum, high, low, first, second, third, fourth, COUNTS, SHIFT, LANES, GROUP
        )
        lowest, highest = narrow(first, above_first, target, lowest, highest)
        lowest, highest = narrow(second, above_second, target, lowest, highest)
        lowest, highest = narrow(third, above_third, target, lowest, highest)
        lowest, highest = narrow(fourth, above_fourth, target, lowest, highest)
    return highest.to(tl.int32)


@triton.jit
def collect(
    row_logits, vocab_size, bound, scratch, LANES: tl.constexpr, GROUP: tl.constexpr, DEPTH: tl.constexpr,
    UNROLL: tl.constexpr,
):  # fmt: skip
    """Leave the logits at or above the bound in the scratch memory, each thread in places of its own.

    Returns:
        [THREADS] int32, the number of logits that each found; the first DEPTH of them are kept.
    """
    THREADS: tl.constexpr = LANES // GROUP
    counts = tl.full((THREADS,), 0, tl.int32)
    first_places = tl.arange(0, THREADS) * DEPTH
    for first in tl.range(0, vocab_size, LANES, loop_unroll_factor=UNROLL):
        offsets = first + tl.arange(0, LANES)
        inside = offsets < vocab_size
        values = tl.load(row_logits + offsets, mask=inside, other=-float("inf"))
        found = tl.reshape(((values.to(tl.float32) >= bound) & inside).to(tl.int32), (THREADS, GROUP))
        places = counts[:, None] + tl.cumsum(found, axis=1) - 1
        kept = (found != 0) & (places < DEPTH)
        tl.store(scratch + first_places[:, None] + places, tl.reshape(values, (THREADS, GROUP)), mask=kept)
        counts += tl.sum(found, axis=1)
    return counts


@triton.jit
def row_sums(row_logits, vocab_size, maximum, threshold, temperature, LANES: tl.constexpr, GROUP: tl.constexpr):
    """(mass, moment sum exp(d / T) d) of the tokens at or above a threshold, by one pass."""
    THREADS: tl.constexpr = LANES // GROUP
    high, low = scale(temperature)
    masses = tl.full((THREADS,), 0.0, tl.float64)
    moments = tl.full((THREADS,), 0.0, tl.float64)
    for first in tl.range(0, vocab_size, LANES):
        offsets = first + tl.arange(0, LANES)
        values = tl.load(row_logits + offsets, mask=offsets < vocab_size, other=-float("inf")).to(tl.float32)
        logits = tl.reshape(values, (THREADS, GROUP))
        weights = tl.where(logits >= threshold, weigh(logits, maximum, high, low), 0.0)
        masses += tl.sum(weights, axis=1).to(tl.float64)
        moments += tl.sum(tl.where(weights > 0, weights * (logits - maximum), 0.0), axis=1).to(tl.float64)
    return tl.sum(masses, axis=0), tl.sum(moments, axis=0)


@triton.jit
def lower_bound(lanes, maximum, mass, temperature, top_k, top_p, vocab_size, SHIFT: tl.constexpr):
    """A logit that neither top-k's nor top-p's threshold lies below, float32."""
    high, low = scale(temperature)
    top_key = ordered_key(maximum, SHIFT)
    keys = ordered_key(lanes, SHIFT)
    lowest = tl.min(keys)
    key = lowest
    bound = tl.full((), -float("inf"), tl.float32)
    if top_k > 0:
        key = smallest_key(keys, top_k.to(tl.float64), lowest, top_key, maximum, high, low, True, SHIFT)
    elif top_p < 1:
        # The factors here and below keep clear of the rounding of sums.
        target = top_p.to(tl.float64) * mass * (1.0 - 1e-6)
        key = smallest_key(keys, target, lowest, top_key, maximum, high, low, False, SHIFT)
        share = (1.0 - top_p.to(tl.float64)) * mass / vocab_size
        lightest = maximum.to(tl.float64) + divisor(temperature) * tl.log(share * (1.0 - 1e-5))
        bound = (lightest - 1e-5 * (1.0 + tl.abs(lightest))).to(tl.float32)
    # At the lowest key the lanes say nothing of the tokens behind them.
    return tl.where(key > lowest, tl.maximum(bound, value_of(key, SHIFT)), bound)


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
    row_logits, vocab_size, lanes, maximum, mass, temperature, top_k, top_p, min_p, scratch,
    SHIFT: tl.constexpr, LANES: tl.constexpr, GROUP: tl.constexpr, DEPTH: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """(threshold, mass of the survivors) of a row that is truncated."""
    high, low = scale(temperature)
    bound = lower_bound(lanes, maximum, mass, temperature, top_k, top_p, vocab_size, SHIFT)
    if (top_k == 0) | (top_p >= 1):
        # Not with both: what min-p cuts still counts in the mass of which top-p takes its share.
        bound = tl.maximum(bound, min_p_threshold(maximum, temperature, min_p))
    # With a candidate in every second lane some thread would run out of room.
    num_lanes = tl.sum(tl.sum((lanes >= bound).to(tl.int32), axis=1), axis=0)
    counts = tl.full((LANES // GROUP,), DEPTH + 1, tl.int32)
    if num_lanes * 2 < LANES:
        counts = collect(row_logits, vocab_size, bound, scratch, LANES, GROUP, DEPTH, UNROLL)
    tl.debug_barrier()
    key = ordered_key(bound, SHIFT)
    top_key = ordered_key(maximum, SHIFT)
    if tl.max(counts, axis=0) <= DEPTH:
        there = tl.arange(0, DEPTH)[None, :] < counts[:, None]
        candidates = scratch + tl.arange(0, LANES // GROUP)[:, None] * DEPTH + tl.arange(0, DEPTH)[None, :]
        logits = tl.load(candidates, mask=there, other=-float("inf")).to(tl.float32)
        keys = ordered_key(logits, SHIFT)
        if top_k > 0:
            key = smallest_key(keys, top_k.to(tl.float64), key, top_key, maximum, high, low, True, SHIFT)
            mass = weight_above(keys, key - 1, maximum, high, low, False, SHIFT)
        if top_p < 1:
            target = top_p.to(tl.float64) * mass
            key = smallest_key(keys, target, key, top_key, maximum, high, low, False, SHIFT)
        logits = value_of(keys, SHIFT)
        survives = (keys >= key) & (logits >= min_p_threshold(maximum, temperature, min_p))
        threshold = tl.min(tl.where(survives, logits, float("inf")))
        mass = weight_above(keys, ordered_key(threshold, SHIFT) - 1, maximum, high, low, False, SHIFT)
    else:
        if top_k > 0:
            target = top_k.to(tl.float64)
            key = smallest_key_of_row(
                row_logits, vocab_size, maximum, high, low, target, key, top_key, True, SHIFT, LANES, GROUP
            )
            mass, _ = row_sums(row_logits, vocab_size, maximum, value_of(key, SHIFT), temperature, LANES, GROUP)
        if top_p < 1:
            target = top_p.to(tl.float64) * mass
            key = smallest_key_of_row(
                row_logits, vocab_size, maximum, high, low, target, key, top_key, False, SHIFT, LANES, GROUP
            )
        floor = min_p_threshold(maximum, temperature, min_p)
        threshold = tl.maximum(tl.maximum(bound, floor), value_of(key, SHIFT))
        mass, _ = row_sums(row_logits, vocab_size, maximum, threshold, temperature, LANES, GROUP)
    return threshold, mass
