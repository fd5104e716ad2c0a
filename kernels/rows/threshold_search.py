"""The smallest value of a row with less than a target weight above it, by whole passes over the row.

Every pass weighs the tokens from four probes on. They lie around an estimate: at first that of a row of normal logits,
then what the weights on both sides of the interval that is left let expect. The estimates decide how many passes it
takes, and never what is found: an interval of keys shrinks until one is left.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .radix_select import ordered_key, probe, probed_value, summed, value_of
from .softmax_weights import scale, weigh
from .token_mask import only_allowed
from .unaligned import load_logits


@triton.jit
def normal_quantile(share):
    """float32 in (0, 1) -> float32, the standard normal's quantile within .02 of the truth from .001 to .999.

    Tukey's lambda distribution with lambda = .1349.
    """
    low = tl.minimum(tl.maximum(share, 1e-9), 1.0 - 1e-7)
    return (tl.exp2(0.1349 * tl.log2(low)) - tl.exp2(0.1349 * tl.log2(1.0 - low))) * 5.0633


@triton.jit
def scores_of_normal_row(mass, num_tokens, counting, target):
    """Standard scores of a threshold and of the largest logit, and the logits' deviation over T, if they are normal.

    Of V normal logits with standard deviation s T, the largest lies about z above the mean, in units of the deviation.
    Tokens weighed by exp(x / T) are the same distribution moved up by s, with mass V exp(s^2 / 2 - z s) in units of the
    largest: a quadratic equation for s.

    Args:
        mass: of all tokens, in units of the largest, float64.
        num_tokens: V.
        counting: whether `target` is a number of tokens, else it is a mass.
        target: float64.
    """
    logarithm = tl.log(num_tokens.to(tl.float32))
    largest = tl.sqrt(2 * logarithm - tl.log(12.566 * logarithm)) + 0.3665 / tl.sqrt(2 * logarithm)
    rest = largest * largest - 2 * (logarithm - tl.log(mass.to(tl.float32)))
    deviation = tl.maximum(largest - tl.sqrt(tl.maximum(rest, 0.0)), 0.05)
    # Divisions of float64 are calls, around which registers spill.
    part = target.to(tl.float32) / tl.where(counting, num_tokens.to(tl.float32), mass.to(tl.float32))
    return tl.where(counting, 0.0, deviation) - normal_quantile(part), largest, deviation


@triton.jit
def interval_around(value, reach, bottom, top, SHIFT: tl.constexpr):
    """(lowest, one above the highest) of the keys among which the next probes lie: those within `reach` of a logit.

    They are five at least, or all of `bottom` to `top`: also where the logit does not lie between these, or is NaN. So
    one of the probes lies above `bottom`, and each pass leaves fewer keys.
    """
    is_inside = (value >= value_of(bottom, SHIFT)) & (value <= value_of(top, SHIFT)) & (reach > 0)
    lowest = tl.where(is_inside, tl.maximum(ordered_key(value - reach, SHIFT), bottom), bottom)
    highest = tl.maximum(tl.where(is_inside, ordered_key(value + reach, SHIFT), top) + 1, lowest + 5)
    return lowest, tl.minimum(highest, top + 1)


@triton.jit
def weights_from(
    row_logits, vocab_size, in_words, mask, maximum, temperature, counting, first, second, third, fourth,
    LANES: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Numbers or masses, float64, of the tokens at or above four logits, by one pass."""
    THREADS: tl.constexpr = LANES // GROUP
    high, low = scale(temperature)
    from_first = tl.full((THREADS,), 0.0, tl.float64)
    from_second = tl.full((THREADS,), 0.0, tl.float64)
    from_third = tl.full((THREADS,), 0.0, tl.float64)
    from_fourth = tl.full((THREADS,), 0.0, tl.float64)
    for start in tl.range(0, vocab_size, LANES):
        offsets = start + tl.arange(0, LANES)
        values = load_logits(row_logits, offsets, vocab_size, in_words)
        values = only_allowed(values, offsets, vocab_size, mask, GROUP)
        logits = tl.reshape(values, (THREADS, GROUP))
        weights = tl.where(counting, 1.0, weigh(logits, maximum, high, low))
        from_first += summed(tl.where(logits >= first, weights, 0.0))
        from_second += summed(tl.where(logits >= second, weights, 0.0))
        from_third += summed(tl.where(logits >= third, weights, 0.0))
        from_fourth += summed(tl.where(logits >= fourth, weights, 0.0))
    # To join them, so that threads meet once, takes 30 registers more.
    return (
        tl.sum(from_first, axis=0),
        tl.sum(from_second, axis=0),
        tl.sum(from_third, axis=0),
        tl.sum(from_fourth, axis=0),
    )


@triton.jit
def select_of_row(
    row_logits, vocab_size, in_words, mask, maximum, temperature, counting, target, bottom, top, weight_above_top,
    estimate, reach,
    SHIFT: tl.constexpr, LANES: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """(the smallest key from `bottom` to `top` with less than `target` above it, weight from it on or 0 if unweighed).

    Args:
        counting: whether weights are numbers of tokens, else they are masses.
        target: float64.
        bottom: key that the answer does not lie below; so is `top`, above.
        weight_above_top: of the tokens above that key, float64, less than the target.
        estimate: of the answer, float32.
        reach: how far off it may well be, float32.
    """
    weight_from_bottom = tl.full((), 0.0, tl.float64)
    lowest, highest = interval_around(estimate, reach, bottom, top, SHIFT)
    while bottom < top:
        from_first, from_second, from_third, from_fourth = weights_from(
            row_logits, vocab_size, in_words, mask, maximum, temperature, counting,
            probed_value(lowest, highest, 1, SHIFT), probed_value(lowest, highest, 2, SHIFT),
            probed_value(lowest, highest, 3, SHIFT), probed_value(lowest, highest, 4, SHIFT), LANES, GROUP,
        )  # fmt: skip
        if from_fourth >= target:
            bottom, weight_from_bottom = probe(lowest, highest, 4), from_fourth
        elif from_third >= target:
            bottom, weight_from_bottom = probe(lowest, highest, 3), from_third
            top, weight_above_top = probe(lowest, highest, 4) - 1, from_fourth
        elif from_second >= target:
            bottom, weight_from_bottom = probe(lowest, highest, 2), from_second
            top, weight_above_top = probe(lowest, highest, 3) - 1, from_third
        elif from_first >= target:
            bottom, weight_from_bottom = probe(lowest, highest, 1), from_first
            top, weight_above_top = probe(lowest, highest, 2) - 1, from_second
        else:
            top, weight_above_top = probe(lowest, highest, 1) - 1, from_first
        end = value_of(top + 1, SHIFT)
        if weight_from_bottom == 0:
            # Down to four times as far, unless the row seems to have ended.
            reach = 2 * (value_of(highest, SHIFT) - value_of(lowest, SHIFT))
            reach = tl.where(from_first > from_fourth, reach, 0.0)
            estimate = end - reach
        else:
            width = end - value_of(bottom, SHIFT)
            part = (target - weight_above_top).to(tl.float32) / (weight_from_bottom - weight_above_top).to(tl.float32)
            estimate = end - part * width
            # An estimate that was far off is followed by fifths of what is left.
            reach = tl.where((from_fourth >= target) | (from_first < target), 0.0, width * 0.15)
        lowest, highest = interval_around(estimate, reach, bottom, top, SHIFT)
    return bottom, weight_from_bottom
