"""Settings and metrics of cells as entries of a table."""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan
from typing import Any

from harness.analysis.answers import other_answers
from harness.analysis.cell import CellResult
from harness.analysis.definitions import metric
from harness.analysis.estimates import Estimate
from harness.report.cell_names import DISTURBED, drafter_name, is_disturbed
from harness.report.loop_notes import LOOPS, is_inflated
from harness.report.number_format import PLAIN, Number, without_width_zero
from harness.report.table import NONE, Entry


def setting(value: Any) -> Entry:
    """The value of a setting."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return Number(value, style=PLAIN) if is_number else str(value)


def settings_of(cell: CellResult, names: Sequence[str]) -> list[Entry]:
    """Some settings of a cell, its temperature and its drafter."""
    return [*(setting(cell[name]) for name in [*names, "temperature"]), drafter_name(cell)]


def estimate_number(cell: CellResult, name: str) -> Number:
    """A metric with its interval; the speedup of a baseline is 1 by definition."""
    if cell.is_baseline and name == "speedup" and not (cell.record.has_failed or cell.has_failed_requests):
        return Number(1, style=PLAIN)
    return metric_number(cell.estimate(name), name, cells=[cell])


def metric_number(
    estimate: Estimate,
    name: str,
    *,
    style: str | None = None,
    signed: bool = False,
    sign: str = "",
    cells: Sequence[CellResult] = (),
) -> Number:
    """A value, difference or ratio of a metric with its interval; that of a time is n/a where it has no width.

    Args:
        style: of the number; None is that of the metric.
        cells: those it comes from; a mark follows a time if one of them was disturbed, acceptance if answers loop.
    """
    item = metric(name)
    shown = estimate if item.of_tokens else without_width_zero(estimate)
    mark = ""
    if not isnan(shown.value):
        is_marked = not item.of_tokens and any(map(is_disturbed, cells))
        loops = any(is_inflated(name, cell) for cell in cells)
        mark = DISTURBED if is_marked else LOOPS if loops else ""
    return Number(*shown, style=style or item.style, signed=signed, sign=sign, mark=mark)


def same_answers(first: CellResult, second: CellResult) -> str:
    """Requests of both cells whose output tokens are identical, of those whose tokens both have; a dash without any."""
    found = other_answers(first.record, second.record)
    return f"{found.num_compared - found.num_other} of {found.num_compared}" if found.num_compared else NONE
