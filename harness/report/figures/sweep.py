"""The figures of sweeps of one number: acceptance length and speedup against it, a column per drafter.

Temperature and K lie on an axis of their own scale; settings whose values lie far apart, such as concurrency, evenly.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from math import isnan
from typing import TYPE_CHECKING

from harness.analysis.definitions import metric
from harness.report.figures.axis import CONTEXT_AXES, DEPTH, TEMPERATURE, Axis
from harness.report.figures.kinds import FigureKind
from harness.report.figures.panels import (
    FEW_SERIES,
    Panel,
    Point,
    draw_points,
    finish,
    grid,
    offset,
    panel_rows,
    point,
)
from harness.report.figures.sheet import Sheet
from harness.report.figures.style import REFERENCE_LINE, Look

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LENGTH = "full_draft_length"
"""The acceptance length that is drawn: not mixed with drafts that the end of a request shortens."""
LENGTH_TEXT = metric(LENGTH).label
LENGTH_LABEL = LENGTH_TEXT.replace(" of ", "\nof ")
"""Beside an axis."""
SPEEDUP_LABEL = "speedup over the\nautoregressive baseline"
PANEL_INCHES, MAX_PANEL_INCHES = (2.35, 2.1), 6.0
SERIES_INCHES = 0.11
"""Of a marker and its interval among many."""
CROWDED_SPREAD = 0.7
"""Of many series at a value, as a share of the way to the next."""
FAINT = {"linewidth": 0.7, "alpha": 0.35, "zorder": 1.5}
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
    size = _panel_inches(len(sheet.series), _ticks(axis, values)), PANEL_INCHES[1]
    figure, axes = grid(len(rows) * len(blocks), len(blocks[0]), size, sharex="none", sharey="row")
    for index, panels in enumerate(blocks):
        _draw_block(axes[len(rows) * index :][: len(rows)], panels, sheet, axis, values, rows)
    what = f"{LENGTH_TEXT.capitalize()} and speedup" if len(rows) > 1 else LENGTH_TEXT.capitalize()
    where = ", ".join(sheet.fixed((axis.name,)))
    return finish(figure, f"{what} against {axis.short}", where, sheet, shows_times=len(rows) > 1)


def _ticks(axis: Axis, values: Sequence) -> list:
    return list(range(len(values))) if axis.is_context else list(values)


def _gap(ticks: Sequence[float]) -> float:
    return min(after - before for before, after in pairwise(ticks))


def _panel_inches(num_series: int, ticks: Sequence[float]) -> float:
    """Wide enough that many series at a value stand apart, as far as a page goes."""
    if num_series <= FEW_SERIES:
        return PANEL_INCHES[0]
    num_steps = (ticks[-1] - ticks[0]) / _gap(ticks) + 1
    return min(MAX_PANEL_INCHES, max(PANEL_INCHES[0], num_steps * num_series * SERIES_INCHES / CROWDED_SPREAD))


def _draw_behind(axes: Axes, look: Look, points: Sequence[Point]) -> None:
    """The line of a series behind the markers of all."""
    shown = [item for item in points if not isnan(item.estimate.value)]
    places, values = [item.place for item in shown], [item.estimate.value for item in shown]
    axes.plot(places, values, color=look.color, linestyle=look.linestyle, **FAINT)


def _draw_block(grid_rows, panels: Sequence[Panel], sheet: Sheet, axis: Axis, values: Sequence, rows) -> None:
    """The panels of one row, one below the other for every metric."""
    ticks, is_crowded = _ticks(axis, values), len(sheet.series) > FEW_SERIES
    gap = _gap(ticks)
    width = CROWDED_SPREAD * gap if is_crowded else min(0.3 * gap, 0.08 * (ticks[-1] - ticks[0]))
    margin = width / 2 + 0.05 * (ticks[-1] - ticks[0])
    for row, (name, row_label) in zip(grid_rows, rows, strict=True):
        for axes, panel in zip(row, panels, strict=False):
            for index, (key, (_, look)) in enumerate(sheet.series.items()):
                shift = offset(index, len(sheet.series), width)
                points = [
                    point(ticks[values.index(cell[axis.name])] + shift, cell, name)
                    for cell in sheet.of_series(panel.sheet.cells, key)
                ]
                points = sorted(points, key=lambda item: item.place)
                if is_crowded:
                    _draw_behind(axes, look, points)
                draw_points(axes, look._replace(linestyle="none") if is_crowded else look, points)
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


def _sweep(axis: Axis) -> FigureKind:
    text = f"{LENGTH_TEXT.capitalize()} and speedup against {axis.short}"
    return FigureKind(f"by_{axis.stem}", text, partial(draw_sweep, axis=axis), (axis.name,))


SWEEPS = tuple(map(_sweep, (TEMPERATURE, DEPTH, *CONTEXT_AXES)))
