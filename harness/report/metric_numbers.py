"""Metrics of cells as cells of a table."""

from __future__ import annotations

from harness.metrics.cell import Cell
from harness.metrics.definitions import metric
from harness.metrics.estimates import Estimate
from harness.report.number_format import format_estimate, without_width_zero


def estimate_text(cell: Cell, name: str) -> str:
    """A metric with its interval; the speedup of a baseline is 1 by definition."""
    if cell.is_baseline and name == "speedup":
        return "1"
    return metric_text(cell.estimate(name), name)


def metric_text(estimate: Estimate, name: str, *, style: str | None = None, signed: bool = False) -> str:
    """A value, difference or ratio of a metric with its interval; that of a time is n/a where it has no width."""
    item = metric(name)
    shown = estimate if item.of_tokens else without_width_zero(estimate)
    return format_estimate(shown, item.style if style is None else style, signed=signed)
