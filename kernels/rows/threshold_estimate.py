"""A bound above which the threshold of a row surely or probably lies, from a sample of the row.

Every SPARSE-th step over the row is read, and each thread keeps the largest logit that it saw. If n tokens of the
sample lie above a value, the share of threads that saw one is about 1 - exp(-n / threads): so the value that n tokens
lie above is one of the threads' maxima, of known rank.

    top-k          a few more tokens than k lie above the bound, at most WANTED
    top-p          WANTED tokens do, five in eight of those that there is room for
    min-p alone    the bound is the threshold of the sample: that of the row lies nowhere below it

The bound affects time only: kernels.rows.thresholds looks for what lies below it by whole passes over the row. This
module reads no masses.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .radix_select import ordered_key, value_of
from .softmax_weights import divisor
from .token_mask import only_allowed
from .unaligned import load_logits

SPARSE: tl.constexpr = tl.constexpr(8)
"""One step over the row in so many is read, all through the row: neighbours in a vocabulary are alike."""
LEAST_LOGIT: tl.constexpr = tl.constexpr(-3.4028234663852886e38)
"""What pads a row is -inf, and lies below every bound."""


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
def ranked(maxima, highest, rank, temperature, THREADS: tl.constexpr):
    """A value that about `rank` of the maxima [THREADS] lie at or above, float32.

    Four steps divide an interval by four: the counts at three probes are summed as one number, so threads meet once.
    """
    low = tl.max(tl.min(tl.reshape(maxima, (THREADS // 32, 32)), axis=1), axis=0)
    # Lighter tokens than that matter to none but top-k.
    low = tl.maximum(low, highest - 64.0 * temperature)
    width = highest - low
    for _ in tl.range(0, 4):
        width *= 0.25
        number = (maxima >= low + width).to(tl.int32)
        number += (maxima >= low + 2.0 * width).to(tl.int32) << 10
        number += (maxima >= low + 3.0 * width).to(tl.int32) << 20
        number = tl.sum(number, axis=0)
        steps = ((number & 1023) >= rank).to(tl.int32)
        steps += (((number >> 10) & 1023) >= rank).to(tl.int32)
        steps += ((number >> 20) >= rank).to(tl.int32)
        low += steps.to(tl.float32) * width
    return low


@triton.jit
def guess_bound(
    row_logits, vocab_size, in_words, mask, temperature, top_k, top_p, min_p,
    SHIFT: tl.constexpr, LANES: tl.constexpr, GROUP: tl.constexpr, DEPTH: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """The bound, float32 and finite, a value of the logits' type; below all tokens of a row for which there is room."""
    THREADS: tl.constexpr = LANES // GROUP
    WANTED: tl.constexpr = THREADS * DEPTH * 5 // 8
    bound = tl.full((), LEAST_LOGIT, tl.float32)
    if vocab_size > THREADS * DEPTH:
        maxima = tl.full((THREADS,), -float("inf"), tl.float32)
        for first in tl.range(0, vocab_size, LANES * SPARSE, loop_unroll_factor=UNROLL):
            offsets = first + tl.arange(0, LANES)
            values = load_logits(row_logits, offsets, vocab_size, in_words)
            values = only_allowed(values, offsets, vocab_size, mask, GROUP)
            maxima = tl.maximum(maxima, tl.max(tl.reshape(values, (THREADS, GROUP)), axis=1))
        highest = tl.max(maxima, axis=0)
        if (top_k <= 0) & (top_p >= 1):
            bound = tl.maximum(bound, min_p_threshold(highest, temperature, min_p))
        else:
            num_read = tl.cdiv(vocab_size, LANES * SPARSE).to(tl.float32) * LANES
            share = tl.minimum(num_read / vocab_size.to(tl.float32), 1.0)
            expected = top_k.to(tl.float32) * share
            enough = expected + 4.0 * tl.sqrt(expected) + 8.0
            wanted = tl.where(top_k > 0, tl.minimum(enough, WANTED * share), WANTED * share)
            rank = THREADS * (1.0 - tl.exp2(wanted * (-1.4426950408889634 / THREADS)))
            bound = tl.maximum(bound, ranked(maxima, highest, rank, temperature, THREADS))
    return value_of(ordered_key(bound, SHIFT), SHIFT)
