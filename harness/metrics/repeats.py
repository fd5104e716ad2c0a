"""Cells that differ in their seed only, and the mean of a metric over them with an interval.

An interval over prompts holds what prompts vary by within one cell; this one also holds what changes from repeat to
repeat: the random numbers, the order of the prompts, the machine.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from harness.metrics.cell import CellResult
from harness.metrics.estimates import NOT_AVAILABLE, Estimate
from harness.metrics.intervals import mean_interval


def repeats(cells: Sequence[CellResult]) -> list[tuple[CellResult, ...]]:
    """The cells of a run that differ in their seed only, two or more together, in the order of the first of each."""
    found: dict[str, list[CellResult]] = {}
    for cell in cells:
        found.setdefault(cell.key_without("seed"), []).append(cell)
    return [tuple(group) for group in found.values() if len(group) > 1]


def mean_over_repeats(group: Sequence[CellResult], name: str) -> Estimate:
    """The mean of a metric over repeats with Student's t interval; not available where a repeat does not have it.

    Args:
        group: repeats of one cell.
        name: of the metric.
    """
    values = np.array([cell.estimate(name).value for cell in group])
    if not np.isfinite(values).all():
        return NOT_AVAILABLE
    return Estimate(float(values.mean()), *mean_interval(values, group[0].estimates.confidence))
