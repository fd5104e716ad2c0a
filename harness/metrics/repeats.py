"""Cells that differ in their seed only, and the mean of a metric over them with an interval.

An interval over prompts holds what prompts vary by within one cell; this one also holds what changes from repeat to
repeat: the random numbers, the order of the prompts, the machine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from harness.metrics.cell import CellResult
from harness.metrics.estimates import NOT_AVAILABLE, Estimate

MIN_REPEATS = 3
"""For an interval."""


def repeats(cells: Sequence[CellResult]) -> list[tuple[CellResult, ...]]:
    """The cells of a run that differ in their seed only, two or more together, in the order of the first of each."""
    found: dict[str, list[CellResult]] = {}
    for cell in cells:
        found.setdefault(cell.key_without("seed"), []).append(cell)
    return [tuple(group) for group in found.values() if len(group) > 1]


def mean_over_repeats(group: Sequence[CellResult], name: str) -> Estimate:
    """The mean of a metric over repeats with Student's t interval; not available where a repeat does not have it.

    Below `MIN_REPEATS` there is no interval: with one degree of freedom it is 12.7 standard errors wide to each side,
    and leaves the range of a rate.

    Args:
        group: repeats of one cell.
        name: of the metric.
    """
    from scipy.special import stdtrit

    values = np.array([cell.estimate(name).value for cell in group])
    if not np.isfinite(values).all():
        return NOT_AVAILABLE
    mean = float(values.mean())
    if len(values) < MIN_REPEATS:
        return Estimate(mean, math.nan, math.nan)
    error = float(values.std(ddof=1)) / math.sqrt(len(values))
    reach = float(stdtrit(len(values) - 1, (1 + group[0].estimates.confidence) / 2)) * error
    return Estimate(mean, mean - reach, mean + reach)
