"""The figure of acceptance by draft position, with bounds: a column per drafter, a row per temperature, at one K."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from math import isnan
from typing import TYPE_CHECKING

from harness.analysis.cell import CellResult
from harness.analysis.comparison import ids_of_same_law
from harness.report.figures.panels import LegendEntry, Point, draw_points, finish, grid, offset, panel_rows
from harness.report.figures.sheet import Sheet
from harness.report.figures.style import SAME_LAW_TEXT, Look
from harness.report.number_format import scaled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_TEMPERATURES = 3
"""Rows of the figure: the lowest, the middle and the highest temperature."""
PANEL_INCHES, MAX_PANEL_INCHES = 2.35, 6.0
SPREAD = 0.7
"""Of the series at a position, whose distance is 1."""
SERIES_POINTS = 8.0
"""Width for a series at a position: its marker, and its bound beside it."""
FEW_SERIES = 5
"""Lines of more would hide their markers."""
FAINT = {"linewidth": 0.7, "alpha": 0.35, "zorder": 1.5}
BESIDE = 0.45
"""Where the bound stands, as a share of the way to the next series."""


BAR = LegendEntry(
    "bar beside a marker, its interval as a band: most that a lossless rule\n"
    "which decides one position at a time could accept of the\n"
    "method's own drafts; block and traversal may exceed it",
    {"marker": "_", "markersize": 5, "markeredgewidth": 1.8, "linestyle": "none"},
)
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
    temperatures, series = sheet.temperatures, sheet.series
    blocks = panel_rows(sheet)
    # a tree has fewer positions than draft tokens
    last = max(cell.estimates.sums.num_positions if cell["tree"] else sheet.main_depth for cell in sheet.cells)
    width = _panel_inches(len(series), last)
    beside = BESIDE * SPREAD / max(3, len(series) - 1)
    figure, grid_axes = grid(
        len(blocks) * len(temperatures), len(blocks[0]), (width, 1.95), sharex="none", sharey="all"
    )
    bounds, alike = list[bool](), ids_of_same_law(sheet.cells)
    for row, (panels, temperature) in zip(grid_axes, product(blocks, temperatures), strict=True):
        for axes, panel in zip(row, panels, strict=False):
            cells = panel.sheet.select(temperature=temperature)
            for index, (key, (_, look)) in enumerate(series.items()):
                shift = offset(index, len(series), SPREAD)
                for cell in sheet.of_series(cells, key):
                    rates = [
                        Point(position + shift, scaled(cell.estimate(f"acceptance_rate_per_pos_{position}"), 100))
                        for position in range(1, cell.estimates.sums.num_positions + 1)
                    ]
                    _draw_rates(axes, look, rates, is_crowded=len(series) > FEW_SERIES)
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
    more = [*([BAR] if any(bounds) else []), *([SAME_LAW] if alike else [])]
    return finish(figure, "Acceptance by draft position", f"K = {sheet.main_depth}", sheet, more=more)


def _panel_inches(num_series: int, num_positions: int) -> float:
    """Wide enough that series at a position stand apart, as far as a page goes."""
    step = SPREAD / max(1, num_series - 1)
    points = SERIES_POINTS / step * (num_positions - 0.6 + SPREAD)
    return min(MAX_PANEL_INCHES, max(PANEL_INCHES, points / 72 + 0.45))


def _draw_rates(axes: Axes, look: Look, rates: Sequence[Point], *, is_crowded: bool) -> None:
    """Markers with intervals, joined by a line, which stays behind where many would cross."""
    if is_crowded:
        places, values = [item.place for item in rates], [item.estimate.value for item in rates]
        axes.plot(places, values, color=look.color, linestyle=look.linestyle, **FAINT)
    draw_points(axes, look._replace(linestyle="none") if is_crowded else look, rates)


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
        Point(position + shift, scaled(cell.estimate(f"acceptance_bound_per_pos_{position}"), 100))
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
