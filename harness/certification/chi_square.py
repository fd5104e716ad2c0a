"""The chi-square law: tail, quantile, and the tail under an alternative. float64, no SciPy at run time.

A deviation of total variation d in n samples gives a noncentrality of at least 4 n d^2 (Cauchy-Schwarz, equality for
the deviation that is spread in proportion to the law), so power computed from that holds for every such deviation.
"""

from __future__ import annotations

from functools import cache

import torch

NUM_BISECTIONS = 80


def tail(statistic: float, df: float) -> float:
    """P(chi-square with `df` degrees of freedom > statistic); 0 where it is below the smallest double."""
    if statistic <= 0:
        return 1.0
    half = torch.tensor([df / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


@cache
def critical_value(level: float, df: int) -> float:
    """The statistic that is exceeded with probability `level`."""
    low, high = 0.0, df + 10.0
    while tail(high, df) > level:
        high *= 2
    for _ in range(NUM_BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if tail(middle, df) > level else (low, middle)
    return high


def noncentral_tail(statistic: float, df: int, noncentrality: float) -> float:
    """P(noncentral chi-square > statistic): central tails at df + 2 j, weighted by Poisson(noncentrality / 2)."""
    if noncentrality == 0:
        return tail(statistic, df)
    mean = noncentrality / 2
    width = 12 * mean**0.5 + 40
    terms = torch.arange(max(0, int(mean - width)), int(mean + width) + 1, dtype=torch.float64)
    log_mean = torch.tensor(mean, dtype=torch.float64).log()
    weights = (terms * log_mean - mean - torch.lgamma(terms + 1)).exp()
    tails = torch.special.gammaincc(df / 2 + terms, torch.full_like(terms, statistic / 2))
    return float((weights * tails).sum().clamp(max=1.0))


@cache
def detectable_noncentrality(level: float, df: int, power: float) -> float:
    """The smallest noncentrality that a test at `level` detects with probability `power`."""
    critical = critical_value(level, df)
    low, high = 0.0, critical + 10.0
    while noncentral_tail(critical, df, high) < power:
        high *= 2
    for _ in range(NUM_BISECTIONS // 2):
        middle = (low + high) / 2
        low, high = (middle, high) if noncentral_tail(critical, df, middle) < power else (low, middle)
    return high


def power_at(total_variation: float, num_samples: int, level: float, df: int) -> float:
    """Probability to detect a deviation of at least `total_variation`; 1 for a law that is a single sequence."""
    if df == 0:
        return 1.0 - (1.0 - total_variation) ** num_samples
    noncentrality = 4 * num_samples * total_variation**2
    return noncentral_tail(critical_value(level, df), df, noncentrality)


def detectable_variation(num_samples: int, level: float, df: int, power: float) -> float:
    """The smallest total variation that is detected with probability `power`, wherever it lies."""
    if df == 0:
        return 1.0 - (1.0 - power) ** (1 / num_samples)
    return (detectable_noncentrality(level, df, power) / (4 * num_samples)) ** 0.5


def samples_needed(total_variation: float, level: float, df: int, power: float) -> int:
    """Samples with which `total_variation` is detected with probability `power`."""
    if df == 0:
        return int(10 / total_variation)
    return int(detectable_noncentrality(level, df, power) / (4 * total_variation**2)) + 1
