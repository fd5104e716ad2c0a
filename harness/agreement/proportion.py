"""Bounds for a rate that may have been seen never or a few times."""

from __future__ import annotations

import math


def binomial_cdf(count: int, trials: int, rate: float) -> float:
    """P(X <= count) for X binomial, rate in [count / trials, 1): summed downwards, where the terms only shrink."""
    log_first = (
        math.lgamma(trials + 1)
        - math.lgamma(count + 1)
        - math.lgamma(trials - count + 1)
        + count * math.log(rate)
        + (trials - count) * math.log1p(-rate)
    )
    term = total = 1.0
    for k in range(count, 0, -1):
        term *= k / (trials - k + 1) * (1 - rate) / rate
        total += term
        if term < 1e-18 * total:
            break
    return min(1.0, math.exp(log_first) * total)


def upper_bound(count: int, trials: int, confidence: float = 0.95) -> float:
    """The one-sided Clopper-Pearson bound: the rate at which `count` or fewer have probability 1 - confidence.

    Without any it is 1 - (1 - confidence)^(1 / trials), about 3 / trials at 95 %.

    Args:
        count: times seen, 0..trials.
        trials: times looked, 0 or more.
        confidence: in (0, 1).
    """
    if not 0 <= count <= trials:
        raise ValueError(f"expected a count in 0..{trials}, the number of trials; found {count}")
    if count == trials:
        return 1.0
    low, high = count / trials, 1.0
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        if binomial_cdf(count, trials, middle) > 1 - confidence:
            low = middle
        else:
            high = middle
    return high


def lower_bound(count: int, trials: int, confidence: float = 0.95) -> float:
    """The one-sided Clopper-Pearson bound: the rate at which `count` or more have probability 1 - confidence.

    Args:
        count: times seen, 0..trials; without any it is 0.
        trials: times looked, 0 or more.
        confidence: in (0, 1).
    """
    return 1 - upper_bound(trials - count, trials, confidence) if count else 0.0
