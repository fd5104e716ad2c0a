"""Weights exp((logit - maximum) / T) in float32 with a float64 sum, and the exact probability of single tokens.

A weight is 2^(d * c) with d = logit - maximum, exact or nearly so for 16-bit logits, and c = log2(e) / T carried in two
float32 parts: one part alone would be a systematic error of up to 6e-8 * |d| / T, as if the temperature were another.
What is left is rounding that differs from token to token and averages out in a sum: sums are taken in float32 over
GROUP tokens that one thread holds, and in float64 from there on.
"""

from __future__ import annotations

import triton
import triton.language as tl

GROUP: tl.constexpr = tl.constexpr(8)
"""Tokens that are summed in float32; what one thread loads at a time."""


@triton.jit
def divisor(temperature):
    """The temperature in float64; a greedy row is weighed at 1, which only serves to find NaN in it.

    A temperature of NaN stays NaN, here and in `inverse`: its rows have no distribution then, and are flagged.
    """
    bounded = tl.maximum(temperature, 1e-30, propagate_nan=tl.PropagateNan.ALL)
    return tl.where(temperature == 0, 1.0, bounded).to(tl.float64)


@triton.jit
def inverse(temperature):
    """1 / T in float64, the greedy row's 1 again: within 2 ulp, by two steps of Newton's from a float32 quotient.

    A division in float64 is a call of a function, around which a kernel keeps registers free that it needs elsewhere.
    """
    bounded = tl.maximum(temperature, 1e-30, propagate_nan=tl.PropagateNan.ALL)
    bounded = tl.minimum(bounded, 1e30, propagate_nan=tl.PropagateNan.ALL)
    divided = tl.where(temperature == 0, 1.0, bounded)
    found = (1.0 / divided).to(tl.float64)
    exact = divided.to(tl.float64)
    found = tl.fma(found, tl.fma(-exact, found, 1.0), found)
    return tl.fma(found, tl.fma(-exact, found, 1.0), found)


@triton.jit
def reciprocal(normalizer):
    """1 / S in float64 within 2 ulp, by the steps of `inverse`; S is NaN, or between 2^-126 and 2^126."""
    found = (1.0 / normalizer.to(tl.float32)).to(tl.float64)
    found = tl.fma(found, tl.fma(-normalizer, found, 1.0), found)
    return tl.fma(found, tl.fma(-normalizer, found, 1.0), found)


@triton.jit
def scale(temperature):
    """log2(e) / T as two float32 numbers.

    The first is rounded down, so that the second is positive: -inf times either is -inf, and never NaN.
    """
    whole = 1.4426950408889634 * inverse(temperature)
    high = (whole * (1.0 - 5.960464477539063e-08)).to(tl.float32)
    low = tl.maximum((whole - high.to(tl.float64)).to(tl.float32), 1e-37)
    return high, low


@triton.jit
def weigh(logits, maximum, high, low):
    """float32 weights; NaN where the logit is NaN or +inf, 0 where it is -inf (the maximum must not be)."""
    distance = logits - maximum
    return tl.exp2(tl.fma(distance, low, distance * high))


@triton.jit
def total(weights, WIDTH: tl.constexpr):
    """[WIDTH] float32 -> their sum in float64."""
    partial = tl.sum(tl.reshape(weights, (WIDTH // GROUP, GROUP)), axis=1)
    return tl.sum(partial.to(tl.float64), axis=0)


@triton.jit
def log_probability(logit, maximum, normalizer, threshold, temperature):
    """float64 log probability of one token of a row; -inf where truncated, NaN where the row has no distribution."""
    value = (logit.to(tl.float64) - maximum.to(tl.float64)) * inverse(temperature) - tl.log(normalizer)
    return tl.where(logit >= threshold, value, -float("inf"))
