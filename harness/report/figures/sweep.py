"""The figures of sweeps of one number: acceptance length and speedup against it, a column per drafter.

Temperature and K lie on an axis of their own scale; settings whose values lie far apart, such as concurrency, evenly.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import isnan
from typing import TYPE_CHECKING

from harness.report.figures.axis import Axis
from harness.report.figures.panels import Panel, draw_points, finish, grid, offset, panel_rows, point
from harness.report.figures.sheet import Sheet
from harness.report.figures.style import REFERENCE_LINE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LENGTH = "full_draft_length"
"""The acceptance length that is drawn: not mixed with drafts that the end of a request shortens."""
LENGTH_LABEL = "mean acceptance length\n(full drafts)"
SPEEDUP_LABEL = "speedup over the\nautoregressive baseline"
MIN_VALUES = 3
"""Of a setting that otherwise has figures of its own for each value: two of them are no sweep."""


def draw_sweep(sheet: Sheet, axis: Axis) -> Figure | None:
    """The sweep of one setting, the others at the main K and the highest temperature; None where it was not swept."""
    sheet = sheet.narrowed((axis.name,))
    values = axis.values(sheet.cells)
    if len(values) < (MIN_VALUES if axis.is_context else 2):
        return None
    rows = [(LENGTH, LENGTH_LABEL)]
    if any(not isnan(cell.speedup.value) for cell in sheet.cells):
        rows.append(("speedup", SPEEDUP_LABEL))
    blocks = panel_rows(sheet)
    figure, axes = grid(len(rows) * len(blocks), len(blocks[0]), (2.35, 2.1), sharex="none", sharey="row")
    for index, panels in enumerate(blocks):
        _draw_block(axes[len(rows) * index :][: len(rows)], panels, sheet, axis, values, rows)
    what = "Acceptance length and speedup" if len(rows) > 1 else "Acceptance length"
    where = ", ".join(sheet.fixed((axis.name,)))
    return finish(figure, f"{what} against {axis.short}", where, sheet, shows_times=len(rows) > 1)


def _draw_block(grid_rows, panels: Sequence[Panel], sheet: Sheet, axis: Axis, values: Sequence, rows) -> None:
    """The panels of one row, one below the other for every metric."""
    ticks = list(range(len(values))) if axis.is_context else values
    gap = min(after - before for before, after in pairwise(ticks))
    width = min(0.3 * gap, 0.08 * (ticks[-1] - ticks[0]))
    margin = width / 2 + 0.05 * (ticks[-1] - ticks[0])
    for row, (name, row_label) in zip(grid_rows, rows, strict=True):
        for axes, panel in zip(row, panels, strict=False):
            for index, (key, (_, look)) in enumerate(sheet.series.items()):
                shift = offset(index, len(sheet.series), width)
                points = [
                    point(ticks[values.index(cell[axis.name])] + shift, cell, name)
                    for cell in sheet.of_series(panel.sheet.cells, key)
                ]
                draw_points(axes, look, sorted(points, key=lambda item: item.place))
            axes.axhline(1, color=REFERENCE_LINE, linewidth=0.9)
            axes.set_xticks(ticks, [axis.text(value) for value in values])
            # the same below each other, also where a metric is missing at some value
            axes.set_xlim(ticks[0] - margin, ticks[-1] + margin)
            axes.tick_params(labelbottom=name == rows[-1][0])
        for axes in row[len(panels) :]:
            axes.set_axis_off()
        row[0].set_ylabel(row_label)
    for upper, lower, panel in zip(grid_rows[0], grid_rows[-1], panels, strict=False):
        upper.set_title(panel.title)
        lower.set_xlabel(axis.label)
