"""One number with an interval: which sums it divides, and what it means in words."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Metric:
    """A number with an interval: scale * sum of numerators / denominator, or a percentile of a latency."""

    label: str
    """As printed in tables, with the printed unit."""
    unit: str
    """Unit of the column."""
    definition: str
    style: str
    """Format of the printed number, see `harness.report.number_format`."""
    numerators: tuple[str, ...] = ()
    """Sums over requests (`harness.analysis.sums`) that are added up."""
    denominator: str | None = None
    """Sum over requests that divides; None divides by 1."""
    scale: float = 1.0
    percentile: tuple[str, float] | None = None
    """Name of the latency in `harness.analysis.sums` and level in [0, 1]."""
    of_tokens: bool = False
    """Determined by the law of the tokens alone, not by time: methods of the same law have the same value."""
    low: float = 0.0
    """No value is below; 1 of a mean that counts a token beside the accepted ones, which is 1 + positions at most."""
    high: float = math.inf
    """No value is above."""


def rate(label: str, definition: str, numerator: str, denominator: str, high: float = 1.0) -> Metric:
    """A share of tokens, printed in percent."""
    return Metric(label, "fraction", definition, "percent", (numerator,), denominator, of_tokens=True, high=high)


def length(
    label: str, definition: str, numerators: tuple[str, ...], denominator: str, scale: float = 1.0, low: float = 0.0
) -> Metric:
    """A mean number of tokens."""
    return Metric(label, "tokens", definition, "length", numerators, denominator, scale, of_tokens=True, low=low)
