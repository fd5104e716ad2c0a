"""Gumbel noise that belongs to (seed, position, token): which token has the largest log weight plus noise?

The noise is that of kernels.streams.gumbel, one uniform number of 53 bits and two logarithms a token. Both are spared
for nearly all tokens: 27 of the bits give an upper bound of a token's score in float32, and the exact float64 score is
computed for one token after another, the highest bound first, until no bound reaches the best score. The result is
the exact one, whatever the bounds are worth.

Two logits are compared by their difference, (x - y) / T + g(x) - g(y): next to a score itself noise is lost where
|x / T| is large. So the leader among tokens is (its score, its logit, its noise, its id).
"""

from __future__ import annotations

import triton
import triton.language as tl

from .device_streams import COUPLED, to_unit, words
from .device_weights import inverse

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
def no_leader():
    """The leader before any token has been compared."""
    lowest = tl.full((), -float("inf"), tl.float64)
    return lowest, tl.full((), -float("inf"), tl.float32), tl.full((), 0.0, tl.float64), tl.full((), -1, tl.int32)


@triton.jit
def gumbel_argmax(values, high, offsets, to_target_ids, leader, seed, position, rate, WEIGHTS: tl.constexpr):
    """Let a tile of tokens run against the leader so far; returns the leader then.

    Args:
        values: float32 weights, or logits; a weight of 0 or a logit of -inf never wins.
        high: upper bits of their uniform numbers.
        offsets: int32 ids of the tokens in their row.
        to_target_ids: None, or the ids that the noise belongs to.
        leader: float64 score, float32 value, float64 noise and int32 id; `no_leader` at the start.
        rate: float64, 1 / T of logits; of weights not used.
    """
    best, best_value, best_noise, winner = leader
    if WEIGHTS:
        rough = tl.log(values)
    else:
        rough = values * rate.to(tl.float32)
        # Divided by its temperature a logit may leave the range of float32, and can win all the same.
        bounded = tl.maximum(rough, LOWEST, propagate_nan=tl.PropagateNan.ALL)
        rough = tl.where(values > -float("inf"), bounded, rough)
    bounds = rough + highest_noise(high) + MARGIN + tl.abs(rough) * 1e-6
    bounds = tl.where(rough > -float("inf"), bounds, -float("inf"))
    top = tl.max(bounds)
    while (top > -float("inf")) & (top.to(tl.float64) >= best):
        token = tl.min(tl.where(bounds == top, offsets, 0x7FFFFFFF))
        value = tl.max(tl.where(offsets == token, values, -float("inf")))
        target_token = token.to(tl.int64)
        if to_target_ids is not None:
            target_token = tl.load(to_target_ids + token).to(tl.int64)
        token_noise = noise(seed, position, target_token)
        if WEIGHTS:
            exact = tl.log(value.to(tl.float64)) + token_noise
            lead = exact - best
        else:
            exact = value.to(tl.float64) * rate + token_noise
            lead = (value.to(tl.float64) - best_value.to(tl.float64)) * rate + (token_noise - best_noise)
        if (lead > 0) | ((lead == 0) & (token < winner)):
            best = exact
            best_value = value
            best_noise = token_noise
            winner = token
        bounds = tl.where(offsets == token, -float("inf"), bounds)
        top = tl.max(bounds)
    return best, best_value, best_noise, winner


@triton.jit
def gumbel_argmax_of_logits(
    logits, threshold, offsets, pairs, vocab_size, to_target_ids, leader, seed, position, temperature
):
    """`gumbel_argmax` among the surviving logits of a tile; `pairs` are the halves of its even ids."""
    values = tl.where(logits >= threshold, logits, -float("inf"))
    if to_target_ids is not None:
        ids = tl.load(to_target_ids + offsets, mask=offsets < vocab_size, other=0).to(tl.int32)
        high = mapped_high_words(seed, position, ids)
    else:
        high = high_words(seed, position, pairs)
    return gumbel_argmax(values, high, offsets, to_target_ids, leader, seed, position, inverse(temperature), False)


@triton.jit
def keep_leader(state, at, leader, WEIGHTS: tl.constexpr):
    """Store the leader of a group of chunks for `finish`."""
    best, value, its_noise, token = leader
    if WEIGHTS:
        tl.store(state.argmax_scores + at, best)
    else:
        tl.store(state.argmax_scores + at, its_noise)
        tl.store(state.argmax_logits + at, value)
    tl.store(state.argmax_tokens + at, token)


@triton.jit
def finish(state, at, num_groups, temperature, WEIGHTS: tl.constexpr, GROUPS_PADDED: tl.constexpr):
    """The winner among the leaders of a row's groups, -1 if there is none; the lowest id among equals."""
    groups = tl.arange(0, GROUPS_PADDED)
    inside = groups < num_groups
    scores = tl.load(state.argmax_scores + at + groups, mask=inside, other=-float("inf"), cache_modifier=".cg")
    tokens = tl.load(state.argmax_tokens + at + groups, mask=inside, other=-1, cache_modifier=".cg")
    if not WEIGHTS:
        logits = tl.load(state.argmax_logits + at + groups, mask=inside, other=-float("inf"), cache_modifier=".cg")
        largest = tl.max(logits, axis=0)
        # Where no group has a leader all are -inf; -inf minus -inf would be NaN.
        reference = tl.where(largest == -float("inf"), 0.0, largest).to(tl.float64)
        scores = tl.where(inside, scores, 0.0) + (logits.to(tl.float64) - reference) * inverse(temperature)
    best = tl.max(scores, axis=0)
    token = tl.min(tl.where(scores == best, tokens, 0x7FFFFFFF), axis=0)
    return tl.where(best > -float("inf"), token, -1)
