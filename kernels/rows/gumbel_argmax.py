"""Gumbel noise that belongs to (seed, position, token): which token has the largest log weight plus noise?

The noise is that of kernels.random.streams.gumbel, one uniform number of 53 bits and two logarithms a token. Both are
spared for nearly all tokens: 27 of the bits give an upper bound of a token's score in float32, and the exact float64
score is computed for one token after another, the highest bound first, until no bound reaches the best score. The
result is the exact one, whatever the bounds are worth. Where many tiles of a row are read, threads do not meet in each:
every thread keeps the group of tokens with the largest of its bounds (`race`), and only these groups are compared,
unless a group that was not kept may hold the winner.

Two logits are compared by their difference, (x - y) / T + g(x) - g(y): next to a score itself noise is lost where
|x / T| is large. So the leader among tokens is (its score, its logit, its noise, its id).
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..random.device_streams import HIGH_ROUND, LOW_ROUND, coupled_high_words, coupled_word, to_unit
from .softmax_weights import inverse

MARGIN: tl.constexpr = tl.constexpr(1e-3)
"""Far more than the rounding of a bound near 0; a part of it is relative, for scores that are large."""


LOWEST: tl.constexpr = tl.constexpr(-3.4028234663852886e38)
"""The smallest finite float32."""
LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)


@triton.jit
def noise(seed, position, token):
    """float64 standard Gumbel noise of one token."""
    high = coupled_word(seed, position, token, HIGH_ROUND)
    return -tl.log(-tl.log(to_unit(high, coupled_word(seed, position, token, LOW_ROUND))))


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
def upper_words(offsets, vocab_size, to_target_ids, seed, position):
    """Upper words of the noise of a tile of tokens, whose ids four side by side follow one another from a multiple of
    4, unless `to_target_ids` says which ids the noise belongs to."""
    if to_target_ids is not None:
        ids = tl.load(to_target_ids + offsets, mask=offsets < vocab_size, other=0).to(tl.int32)
        return coupled_word(seed, position, ids, HIGH_ROUND)
    else:
        return coupled_high_words(seed, position, offsets)


@triton.jit
def gumbel_argmax_of_logits(logits, threshold, offsets, vocab_size, to_target_ids, leader, seed, position, temperature):
    """`gumbel_argmax` among the surviving logits of a tile; `offsets` as for `upper_words`."""
    values = tl.where(logits >= threshold, logits, -float("inf"))
    high = upper_words(offsets, vocab_size, to_target_ids, seed, position)
    return gumbel_argmax(values, high, offsets, to_target_ids, leader, seed, position, inverse(temperature), False)


@triton.jit
def no_race(PARTS: tl.constexpr, LANES: tl.constexpr):
    """What `race` keeps, before any token: of each thread the largest bound of a group, that group, and the largest
    bound of the others."""
    lowest = tl.full((PARTS, LANES), -float("inf"), tl.float32)
    return lowest, tl.full((PARTS, LANES), -1, tl.int32), lowest


@triton.jit
def race(
    kept, logits, largest, offsets, groups, vocab_size, to_target_ids, seed, position, high_rate,
    PARTS: tl.constexpr, LANES: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Let a tile run, without a meeting of threads and without a logarithm.

    The noise of a uniform number u is -log(-log u) <= -log(1 - u), and a float's bits are its logarithm, from below,
    within 0.09: of 1 - u the upper word gives 2^-32 times a whole number or more. So a few instructions give an upper
    bound of log2(e) times the score that exceeds it by 0.06 for most tokens, more where u is not near 1.

    Args:
        kept: from `no_race`, or the last tile.
        logits: [PARTS, LANES * GROUP] float32.
        largest: [PARTS, LANES] float32, of each group of them.
        groups: [PARTS, LANES] int32, a name for each group of tokens.
        high_rate: log2(e) / T in float32.
    """
    best, places, others = kept
    high = upper_words(offsets, vocab_size, to_target_ids, seed, position)
    rest = (0xFFFFFFFF - (high | 31)).to(tl.float32)
    bits = rest.to(tl.int32, bitcast=True).to(tl.float32)
    bounds = tl.fma(bits, -1.1920928955078125e-07, tl.fma(logits, high_rate, 159.0))
    found = tl.max(tl.reshape(bounds, (PARTS, LANES, GROUP)), axis=2)
    # A logit divided by its temperature may leave the range of float32, and can win all the same.
    found = tl.maximum(found, tl.where(largest > -float("inf"), LOWEST, -float("inf")))
    others = tl.maximum(others, tl.minimum(best, found))
    places = tl.where(found > best, groups, places)
    return tl.maximum(best, found), places, others


@triton.jit
def may_hide_a_winner(kept, leader):
    """Whether a group that `race` has not kept may hold a token that beats the leader among the groups it has kept.

    That is rare: two of the best must have met in one thread, or bounds be as wide as logits so large that float32
    cannot add noise to them.
    """
    best, _, others = kept
    score = leader[0] * LOG2_E
    lowest = (score - MARGIN - tl.abs(score) * 1e-6).to(tl.float32)
    beaten = (tl.max(others) < lowest) & (score > -1e30)
    return (tl.max(best) > -float("inf")) & (beaten == 0)


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
