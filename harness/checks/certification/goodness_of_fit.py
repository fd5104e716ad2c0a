"""Do the counted sequences follow the exact law? Pearson's test, its power, and how far off they are.

A deviation of total variation d in n samples gives a noncentrality of at least 4 n d^2 (Cauchy-Schwarz, equality for
the deviation that is spread in proportion to the law), so power computed from that holds for every such deviation.
Where some deviation is tolerated, such as that of rounding, its noncentrality is that of the hypothesis, and the
statistic must exceed what a sampler off by so much gives.

Shapes: G groups of requests (profiles), each with its own law; N sequences. Half 0 and half 1 of the requests are
counted apart: the test takes both, the estimate of the distance learns from one half and measures on the other.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from scipy import special, stats
from torch import Tensor

MIN_EXPECTED = 32
"""Rarer sequences are pooled: below that the far tail of Pearson's statistic is heavier than the chi-square law's."""
DEVIATES = 3.29
"""Standard errors on each side of a 99.9 % interval."""


class Fit(NamedTuple):
    """The result of the test of one case."""

    num_samples: int
    df: int
    statistic: float
    p_value: float
    num_impossible: int
    """Sequences that the law excludes; a single one fails the test."""
    pooled_mass: float
    """Share of the samples expected in pooled sequences, inside of which nothing is compared."""
    variation: float
    """Estimate of the total variation from below, without bias: see `held_out_variation`."""
    variation_low: float
    variation_high: float


def held_out_variation(counts: Tensor, law: Tensor) -> tuple[float, float, float]:
    """Excess probability of the sequences that were too frequent in the first half, measured on the second half.

        A = sequences more frequent than the law in half 0;  estimate = share of A in half 1 - probability of A

    Its mean is at most the total variation, close to it when n is large, and 0 on average for a sampler that is exact.

    Args:
        counts: [G, 2, N] float64.
        law: [G, N] float64.

    Returns:
        (estimate, low, high), a 99.9 % normal interval; the groups weighted by their samples.
    """
    first, second = counts[:, 0], counts[:, 1]
    chosen = first > first.sum(1, keepdim=True) * law
    num_samples = second.sum(1)
    share = (second * chosen).sum(1) / num_samples
    weights = num_samples / num_samples.sum()
    estimate = float((weights * (share - (law * chosen).sum(1))).sum())
    error = DEVIATES * float((weights**2 * share * (1 - share) / num_samples).sum().sqrt())
    return estimate, estimate - error, estimate + error


def _pooled(observed: Tensor, expected: Tensor) -> tuple[Tensor, Tensor, float]:
    """Observed and expected counts of one group with the rare sequences as one, and the expected count of that one."""
    common = expected >= MIN_EXPECTED
    if not bool(common.any()):
        return observed.sum()[None], expected.sum()[None], float(expected.sum())
    rest = float(expected[~common].sum())
    kept_observed, kept_expected = observed[common], expected[common]
    if rest == 0:
        return kept_observed, kept_expected, 0.0
    pool = torch.stack([observed[~common].sum(), expected[~common].sum()])
    if rest >= MIN_EXPECTED:
        return torch.cat([kept_observed, pool[:1]]), torch.cat([kept_expected, pool[1:]]), rest
    rarest = kept_expected.argmin()
    kept_observed[rarest] += pool[0]
    kept_expected[rarest] += pool[1]
    return kept_observed, kept_expected, float(kept_expected[rarest])


def fit(counts: Tensor, law: Tensor, tolerated: float = 0.0) -> Fit:
    """Test counted sequences against their law, group by group; statistics and degrees of freedom add up.

    Args:
        counts: [G, 2, N] int64.
        law: [G, N] float64, rows sum to 1.
        tolerated: noncentrality of a deviation that is no fault: n times the sum of its squares over the law.
    """
    halves = counts.double().cpu()
    totals = halves.sum(1)
    num_samples = totals.sum(1)
    impossible = int(totals[law == 0].sum())
    statistic, df, pooled = 0.0, 0, 0.0
    for group in range(len(law)):
        observed, expected, rest = _pooled(totals[group], num_samples[group] * law[group])
        statistic += float(((observed - expected) ** 2 / expected).sum())
        df += len(observed) - 1
        pooled += rest
    p_value = 0.0 if impossible else p_value_of(statistic, df, tolerated)
    total = float(num_samples.sum())
    variation = held_out_variation(halves, law)
    return Fit(int(total), df, statistic, p_value, impossible, pooled / total, *variation)


def p_value_of(statistic: float, df: int, tolerated: float = 0.0) -> float:
    """Probability of a statistic at least as large; see `fit`."""
    if df == 0:
        return 1.0
    return float(stats.ncx2.sf(statistic, df, tolerated) if tolerated else stats.chi2.sf(statistic, df))


def power_at(total_variation: float, num_samples: int, level: float, df: int) -> float:
    """Probability to detect a deviation of at least `total_variation`; df 0 is a law with a single sequence.

    Args:
        total_variation: in (0, 1].
        num_samples: of the test.
        level: of the test, in (0, 1).
        df: degrees of freedom.
    """
    if df == 0:
        return 1.0 - (1.0 - total_variation) ** num_samples
    return float(stats.ncx2.sf(stats.chi2.isf(level, df), df, 4 * num_samples * total_variation**2))


def detectable_variation(num_samples: int, level: float, df: int, power: float, tolerated: float = 0.0) -> float:
    """The smallest total variation that `num_samples` samples detect with probability `power`, wherever it lies.

    Args:
        num_samples, level, df: of the test.
        power: in (0, 1).
        tolerated: see `fit`.

    Returns:
        At most 1, which says that no deviation is detected so surely.
    """
    if df == 0:
        return 1.0 - (1.0 - power) ** (1 / num_samples)
    return min(1.0, (_detectable_noncentrality(level, df, power, tolerated) / (4 * num_samples)) ** 0.5)


def samples_needed(total_variation: float, level: float, df: int, power: float) -> int:
    """Samples with which `total_variation` is detected with probability `power`."""
    if df == 0:
        return int(10 / total_variation)
    return int(_detectable_noncentrality(level, df, power) / (4 * total_variation**2)) + 1


def _detectable_noncentrality(level: float, df: int, power: float, tolerated: float = 0.0) -> float:
    critical = stats.ncx2.isf(level, df, tolerated) if tolerated else stats.chi2.isf(level, df)
    return float(special.chndtrinc(critical, df, 1 - power))
