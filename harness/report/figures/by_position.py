"""The figure of acceptance by draft position, with bounds, at one K.

Few methods: lines over positions, a column per drafter and a row per temperature. Many: a row per method beside its
name, a column per position, so that none hides another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from math import isnan
from typing import TYPE_CHECKING

from harness.analysis.cell import CellResult
from harness.analysis.comparison import ids_of_same_law
from harness.analysis.estimates import Estimate
from harness.report.figures.axis import TEMPERATURE
from harness.report.figures.kinds import FigureKind
from harness.report.figures.panels import (
    FEW_SERIES,
    LegendEntry,
    Point,
    draw_points,
    finish,
    grid,
    offset,
    panel_rows,
    rows_of,
    widen_for_names,
)
from harness.report.figures.sheet import Sheet
from harness.report.figures.style import SAME_LAW_MARK, SAME_LAW_TEXT, Look
from harness.report.number_format import scaled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_TEMPERATURES = 3
"""Rows of the figure: the lowest, the middle and the highest temperature."""
PANEL_INCHES = 2.35, 1.95
SPREAD = 0.7
"""Of the series at a position, whose distance is 1."""
BESIDE = 0.45
"""Where the bound stands, as a share of the way to the next series."""
ROW_INCHES, FRAME_INCHES = 0.27, 0.7
"""Height of a method's row, and of what is above and below the rows."""
COLUMN_INCHES = 1.5
BELOW = 0.34
"""Where the bound stands, as a share of the way to the next row."""

BAR = LegendEntry(
    "bar beside a marker, its interval as a band: most that a lossless rule\n"
    "which decides one position at a time could accept of the\n"
    "method's own drafts; block and traversal may exceed it",
    {"marker": "_", "markersize": 5, "markeredgewidth": 1.8, "linestyle": "none"},
)
BAR_BELOW = LegendEntry(BAR.label.replace("beside", "below", 1), {**BAR.style, "marker": "|"})
"""The same in rows."""
BAND = {"linewidth": 3.5, "alpha": 0.3}
"""Beside the interval of the rate."""
SAME_LAW = LegendEntry(
    SAME_LAW_TEXT, {"marker": r"$\equiv$", "markersize": 6, "markeredgewidth": 0.2, "linestyle": "none"}
)
"""Beside the first position of a cell; `SAME_LAW_MARK` as a marker."""
HIGHEST_MARK = 90
"""Percent; above there is no room."""
MARK_POINTS = 6
"""From the end of an interval to the mark."""


def shown_by_position(sheet: Sheet) -> Sheet:
    """The cells at the main K and at most MAX_TEMPERATURES temperatures."""
    sheet = sheet.narrowed(("temperature",))
    temperatures = _some(sheet.temperatures)
    return replace(sheet, cells=tuple(cell for cell in sheet.cells if cell["temperature"] in temperatures))


def draw_by_position(sheet: Sheet) -> Figure:
    """Unconditional acceptance rates at the main K of a sheet."""
    sheet = shown_by_position(sheet)
    # a tree has fewer positions than draft tokens
    last = max(cell.estimates.sums.num_positions if cell["tree"] else sheet.main_depth for cell in sheet.cells)
    draw = _draw_lines if len(sheet.series) <= FEW_SERIES else _draw_rows
    figure, more = draw(sheet, last)
    names_series = len(sheet.series) <= FEW_SERIES
    where = f"K = {sheet.main_depth}"
    return finish(figure, "Acceptance by draft position", where, sheet, names_series=names_series, more=more)


def _draw_lines(sheet: Sheet, last: int) -> tuple[Figure, list[LegendEntry]]:
    """The methods as lines over the positions; returns what the legend says beside their names."""
    temperatures, series, blocks = sheet.temperatures, sheet.series, panel_rows(sheet)
    beside = BESIDE * SPREAD / max(3, len(series) - 1)
    figure, grid_axes = grid(len(blocks) * len(temperatures), len(blocks[0]), PANEL_INCHES, sharex="none", sharey="all")
    bounds, alike = list[bool](), ids_of_same_law(sheet.cells)
    for row, (panels, temperature) in zip(grid_axes, product(blocks, temperatures), strict=True):
        for axes, panel in zip(row, panels, strict=False):
            cells = panel.sheet.select(temperature=temperature)
            for index, (key, (_, look)) in enumerate(series.items()):
                shift = offset(index, len(series), SPREAD)
                for cell in sheet.of_series(cells, key):
                    rates = [
                        Point(position + shift, _percent(cell, "rate", position))
                        for position in range(1, cell.estimates.sums.num_positions + 1)
                    ]
                    draw_points(axes, look, rates)
                    bounds.append(_draw_bounds(axes, look, cell, shift + beside))
                    if rates and cell.record.cell_id in alike:
                        _mark(axes, look, rates[0])
            axes.set_ylim(0, 100)
            axes.set_xlim(0.8 - SPREAD / 2, last + 0.2 + SPREAD / 2)
            axes.set_xticks(range(1, last + 1))
            if temperature == temperatures[0]:
                axes.set_title(panel.title)
            if temperature == temperatures[-1]:
                axes.set_xlabel("draft position")
        for axes in row[len(panels) :]:
            axes.set_axis_off()
        row[0].set_ylabel(f"T = {temperature:g}\nacceptance (%)")
    return figure, [*([BAR] if any(bounds) else []), *([SAME_LAW] if alike else [])]


def _draw_rows(sheet: Sheet, last: int) -> tuple[Figure, list[LegendEntry]]:
    """A row a method, a column a position, the highest temperature first; returns what the legend says."""
    panels = [
        (panel.title, temperature, cells)
        for row in panel_rows(sheet)
        for panel in row
        for temperature in reversed(sheet.temperatures)
        if (cells := panel.sheet.select(temperature=temperature))
    ]
    most = max(len(rows_of(sheet, cells)) for _, _, cells in panels)
    size = COLUMN_INCHES, ROW_INCHES * most + FRAME_INCHES
    figure, grid_axes = grid(len(panels), last, size, sharex="all", sharey="row")
    bounds, alike = list[bool](), ids_of_same_law(sheet.cells)
    for row, (title, temperature, cells) in zip(grid_axes, panels, strict=True):
        keys = rows_of(sheet, cells)
        for position, axes in enumerate(row, start=1):
            for place, key in enumerate(keys):
                look = sheet.series[key][1]
                for cell in sheet.of_series(cells, key):
                    draw_points(axes, look, [Point(place, _percent(cell, "rate", position))], horizontal=True)
                    bounds.append(_draw_bound_below(axes, look, cell, position, place + BELOW))
            axes.set_title(f"position {position}")
            axes.set_ylim(len(keys) - 0.4, -0.6)
            axes.set_xlim(0, 100)
        marks = [any(cell.record.cell_id in alike for cell in sheet.of_series(cells, key)) for key in keys]
        names = [
            f"{sheet.series[key][0]} {SAME_LAW_MARK}" if mark else sheet.series[key][0]
            for key, mark in zip(keys, marks, strict=True)
        ]
        row[0].set_yticks(range(len(keys)), names)
        row[0].set_ylabel(f"{title}\nT = {temperature:g}")
    for axes in grid_axes[-1]:
        axes.set_xlabel("acceptance (%)")
    widen_for_names(figure, sheet)
    return figure, [*([BAR_BELOW] if any(bounds) else []), *([SAME_LAW] if alike else [])]


def _percent(cell: CellResult, what: str, position: int) -> Estimate:
    return scaled(cell.estimate(f"acceptance_{what}_per_pos_{position}"), 100)


def _draw_bound_below(axes: Axes, look: Look, cell: CellResult, position: int, place: float) -> bool:
    """The bound at one position of a row, with its interval; returns whether there was one to draw."""
    bound = _percent(cell, "bound", position)
    if isnan(bound.value):
        return False
    axes.plot([bound.value], [place], color=look.color, **BAR_BELOW.style)
    axes.hlines([place], [bound.low], [bound.high], colors=look.color, zorder=0.5, **BAND)
    return True


def _mark(axes: Axes, look: Look, first: Point) -> None:
    """The mark of the same law above the interval of a first position, or below it where there is no room."""
    from matplotlib.transforms import offset_copy

    value, low, high = first.estimate
    top, bottom = (value if isnan(end) else end for end in (high, low))
    is_above = top <= HIGHEST_MARK
    points = MARK_POINTS if is_above else -MARK_POINTS
    place = offset_copy(axes.transData, axes.figure, y=points, units="points")
    axes.plot([first.place], [top if is_above else bottom], color=look.color, transform=place, **SAME_LAW.style)


def _draw_bounds(axes: Axes, look: Look, cell: CellResult, shift: float) -> bool:
    """A bar at the bound of rules that decide one position at a time; returns whether there was one to draw."""
    found = [
        Point(position + shift, _percent(cell, "bound", position))
        for position in range(1, cell.estimates.sums.num_positions + 1)
    ]
    shown = [(place, *estimate) for place, estimate, *_ in found if not isnan(estimate.value)]
    if shown:
        places, values, lows, highs = zip(*shown, strict=True)
        axes.plot(places, values, color=look.color, **BAR.style)
        axes.vlines(places, lows, highs, colors=look.color, zorder=0.5, **BAND)
    return bool(shown)


def _some(values: Sequence[float]) -> list[float]:
    """At most MAX_TEMPERATURES of the values: the ends and the middle."""
    if len(values) <= MAX_TEMPERATURES:
        return list(values)
    return [values[0], values[len(values) // 2], values[-1]]


BY_POSITION = FigureKind(
    "acceptance_by_position",
    "Acceptance by draft position, of the rounds that drafted it",
    draw_by_position,
    (TEMPERATURE.name,),
    shown_by_position,
)
