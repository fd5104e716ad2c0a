"""Gumbel noise that belongs to (seed, position, token): which token has the largest log weight plus noise?

The noise is that of kernels.streams.gumbel, one uniform number of 53 bits and two logarithms a token. Both are spared
for nearly all tokens: 27 of the bits give an upper bound of a token's score in float32, and the exact float64 score is
computed for one token after another, the highest bound first, until no bound reaches the best score. The result is
the exact one, whatever the bounds are worth.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.device_streams import COUPLED, to_unit, words
from kernels.device_weights import divisor

MARGIN: tl.constexpr = tl.constexpr(1e-3)
"""Far more than the rounding of a bound near 0; a part of it is relative, for scores that are large."""


LOWEST: tl.constexpr = tl.constexpr(-3.4028234663852886e38)
"""The smallest finite float32."""


@triton.jit
def noise(seed, position, token):
    """float64 standard Gumbel noise of one token."""
    first, second, third, fourth = words(seed, COUPLED, position, position * 0, token >> 1)
    odd = (token & 1) != 0
    uniform_number = to_unit(tl.where(odd, third, first), tl.where(odd, fourth, second))
    return -tl.log(-tl.log(uniform_number))


@triton.jit
def high_words(seed, position, pairs):
    """uint32 upper bits of the uniform numbers of tokens 2 p and 2 p + 1 for each p of `pairs`, side by side."""
    first, _, third, _ = words(seed, COUPLED, position, position * 0, pairs)
    return tl.interleave(first, third)


@triton.jit
def mapped_high_words(seed, position, tokens):
    """The same for any tokens."""
    first, _, third, _ = words(seed, COUPLED, position, position * 0, tokens >> 1)
    return tl.where((tokens & 1) != 0, third, first)


@triton.jit
def highest_noise(high):
    """float32 upper bound of the Gumbel noise of a uniform number that has this upper word (`to_unit` drops 5 bits)."""
    high = high | 31
    rest = (0xFFFFFFFF - high).to(tl.float32) * 2.3283064365386963e-10
    near_one = rest + 0.5 * rest * rest
    elsewhere = -tl.log((high.to(tl.float32) + 1.0) * 2.3283064365386963e-10) * (1.0 - 1e-5)
    exponential = tl.where(rest < 0.0625, near_one, elsewhere)
    return -tl.log(exponential)


@triton.jit
def log_weight(values, span, WEIGHTS: tl.constexpr):
    """float64 log weights: of weights themselves, or of logits over a temperature."""
    if WEIGHTS:
        return tl.log(values.to(tl.float64))
    else:
        return values.to(tl.float64) / span


@triton.jit
def gumbel_argmax(values, high, offsets, to_target_ids, best, winner, seed, position, span, WEIGHTS: tl.constexpr):
    """Let a tile of tokens run against the best so far.

    Args:
        values: float32 weights, or logits whose temperature is `span` (float64); a weight of 0 or a logit of -inf never
            wins.
        high: upper bits of their uniform numbers.
        offsets: int32 ids of the tokens in their row.
        to_target_ids: None, or the ids that the noise belongs to.
        best, winner: float64 score and id of the leader; -inf and -1 at the start.
    """
    if WEIGHTS:
        rough = tl.log(values)
    else:
        rough = values * (1.0 / span).to(tl.float32)
        # Divided by its temperature a logit may leave the range of float32, and can win all the same.
        rough = tl.where(values > -float("inf"), tl.maximum(rough, LOWEST), rough)
    bounds = rough + highest_noise(high) + MARGIN + tl.abs(rough) * 1e-6
    bounds = tl.where(rough > -float("inf"), bounds, -float("inf"))
    top = tl.max(bounds)
    while (top > -float("inf")) & (top.to(tl.float64) >= best):
        token = tl.min(tl.where(bounds == top, offsets, 0x7FFFFFFF))
        value = tl.max(tl.where(offsets == token, values, -float("inf")))
        target_token = token.to(tl.int64)
        if to_target_ids is not None:
            target_token = tl.load(to_target_ids + token).to(tl.int64)
        exact = log_weight(value, span, WEIGHTS) + noise(seed, position, target_token)
        if (exact > best) | ((exact == best) & (token < winner)):
            best = exact
            winner = token
        bounds = tl.where(offsets == token, -float("inf"), bounds)
        top = tl.max(bounds)
    return best, winner


@triton.jit
def gumbel_argmax_of_logits(
    logits, threshold, offsets, pairs, vocab_size, to_target_ids, best, winner, seed, position, temperature
):
    """`gumbel_argmax` among the surviving logits of a tile; `pairs` are the halves of its even ids."""
    values = tl.where(logits >= threshold, logits, -float("inf"))
    if to_target_ids is not None:
        ids = tl.load(to_target_ids + offsets, mask=offsets < vocab_size, other=0).to(tl.int32)
        high = mapped_high_words(seed, position, ids)
    else:
        high = high_words(seed, position, pairs)
    return gumbel_argmax(
        values, high, offsets, to_target_ids, best, winner, seed, position, divisor(temperature), False
    )


@triton.jit
def finish(scores, winners, at, num_groups, GROUPS_PADDED: tl.constexpr):
    """The winner among the leaders of a row's groups, -1 if there is none; the lowest id among equals."""
    groups = tl.arange(0, GROUPS_PADDED)
    found = tl.load(scores + at + groups, mask=groups < num_groups, other=-float("inf"), cache_modifier=".cg")
    tokens = tl.load(winners + at + groups, mask=groups < num_groups, other=-1, cache_modifier=".cg")
    best = tl.max(found, axis=0)
    token = tl.min(tl.where(found == best, tokens, 0x7FFFFFFF), axis=0)
    return tl.where(best > -float("inf"), token, -1)
