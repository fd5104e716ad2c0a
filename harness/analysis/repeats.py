"""Cells that differ in their seed only, and the mean of a metric over them with an interval.

An interval over prompts holds what prompts vary by within one cell; this one also holds what changes from repeat to
repeat: the random numbers, the order of the prompts, the machine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from harness.analysis.cell import CellResult
from harness.analysis.definitions import metric
from harness.analysis.estimates import NOT_AVAILABLE, Estimate
from harness.analysis.intervals import MIN_REPEATS, mean_interval


def repeats(cells: Sequence[CellResult]) -> list[tuple[CellResult, ...]]:
    """The cells of a run that differ in their seed only, two or more together, in the order of the first of each."""
    found: dict[str, list[CellResult]] = {}
    for cell in cells:
        found.setdefault(cell.key_without("seed"), []).append(cell)
    return [tuple(group) for group in found.values() if len(group) > 1]


def values_of_repeats(group: Sequence[CellResult], name: str) -> tuple[float, ...]:
    """A metric of each repeat, in the order of their seeds; nan where a repeat does not have it."""
    return tuple(cell.estimate(name).value for cell in sorted(group, key=lambda cell: int(cell["seed"])))


def mean_over_repeats(group: Sequence[CellResult], name: str) -> Estimate:
    """The mean of a metric over repeats; not available where a repeat does not have it.

    Its interval is Student's t within the range of the metric (`harness.analysis.intervals.mean_interval`), and not
    available below MIN_REPEATS repeats.

    Args:
        group: repeats of one cell.
        name: of the metric.
    """
    values = np.array(values_of_repeats(group, name))
    if not np.isfinite(values).all():
        return NOT_AVAILABLE
    if len(values) < MIN_REPEATS:
        return Estimate(float(values.mean()), math.nan, math.nan)
    item = metric(name)
    high = 1.0 + max(map(_num_positions, group)) if item.low == 1 else item.high
    return Estimate(
        float(values.mean()), *mean_interval(values, group[0].estimates.confidence, low=item.low, high=high)
    )


def _num_positions(cell: CellResult) -> int:
    """Most draft tokens that a round of the cell can accept."""
    return cell.estimates.sums.num_positions or int(cell["num_speculative_tokens"])
