"""How far float32 arithmetic may move a probability, and with it the boundary of a decision.

A core works out weights exp(a) with a = (logit - maximum) / T in float32 and sums them in float64. Relative to itself

    a         is rounded at most four times (difference, 1 / T, product, base 2):     4 * 2^-24 = 2^-22
    exp(a)    is within 2 ulp of the exponential of what it was given:                2 * 2^-23 = 2^-22

so the logarithm of the probability of x, a(x) - log sum exp(a), is off by at most

    2^-22 * (|a(x)| + E|a|) + 2 * 2^-22

where E|a| is taken under the row's own law: its entropy less the logarithm of the sum, which is not negative, and so
at most log V = 12.5 for the largest vocabulary. Tokens further than 25 nats below the largest logit are never decided
about in practice: one so far down is drawn once in 10^10 times. 2^-22 * (25 + 12.5 + 2) is below 1e-5.
"""

from __future__ import annotations

from kernels.methods import Method, VerificationMethod

ROUNDING = 1e-5
"""Relative error of one probability that float32 arithmetic explains."""
SCORE_ROUNDING = 1e-9
"""Gap between two scores of coupled noise that is explained: both cores work them out in float64, logit / T within some
1e-14 and the noise, a double logarithm, within some 1e-15. Only what top-p and min-p keep may hang on float32."""


def tolerance_of(method: Method) -> float:
    """The largest margin that rounding explains in what a method draws or decides."""
    return SCORE_ROUNDING if method is VerificationMethod.coupled else ROUNDING
