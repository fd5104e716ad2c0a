"""The figure of methods at a glance: acceptance length and speedup at one temperature and K, a row a method."""

from __future__ import annotations

from itertools import product
from math import isnan
from typing import TYPE_CHECKING

from harness.report.figures.kinds import FigureKind
from harness.report.figures.panels import (
    Panel,
    draw_points,
    finish,
    grid,
    panel_rows,
    point,
    rows_of,
    widen_for_names,
)
from harness.report.figures.sheet import Sheet
from harness.report.figures.style import REFERENCE_LINE
from harness.report.figures.sweep import LENGTH, LENGTH_TEXT

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROW_INCHES, FRAME_INCHES = 0.22, 0.6
"""Height of a row, and of what is above and below the rows of a panel."""


def draw_methods(sheet: Sheet) -> Figure:
    """The methods at the main K and the highest temperature of a sheet: a panel for each drafter and part."""
    sheet = sheet.narrowed(())
    panels = [panel for row in panel_rows(sheet) for panel in row if panel.sheet.cells]
    has_speedup = any(not isnan(cell.speedup.value) for cell in sheet.cells)
    columns = [(LENGTH, LENGTH_TEXT)]
    columns += [("speedup", "speedup over the baseline")] if has_speedup else []
    height = ROW_INCHES * max(len(rows_of(sheet, panel.sheet.cells)) for panel in panels) + FRAME_INCHES
    figure, grid_axes = grid(len(panels), len(columns), (3.4, height), sharey="row")
    for axes, (panel, (name, label)) in zip(grid_axes.flat, product(panels, columns), strict=True):
        _draw_panel(axes, panel, sheet, name)
        axes.set_xlabel(label if panel is panels[-1] else "")
        axes.set_title(panel.title_in_one_line if name == LENGTH else "", loc="left")
    widen_for_names(figure, sheet)
    where = ", ".join(sheet.fixed(()))
    return finish(figure, "Verification methods", where, sheet, shows_times=True, names_series=False)


def _draw_panel(axes: Axes, panel: Panel, sheet: Sheet, name: str) -> None:
    """A metric of a panel's methods, each in its row beside its name."""
    rows = rows_of(sheet, panel.sheet.cells)
    for row, key in enumerate(rows):
        points = [point(row, cell, name) for cell in sheet.of_series(panel.sheet.cells, key)]
        draw_points(axes, sheet.series[key][1], points, horizontal=True)
    axes.axvline(1, color=REFERENCE_LINE, linewidth=0.9)
    axes.set_yticks(range(len(rows)), [sheet.series[key][0] for key in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)


METHODS = FigureKind("methods", f"{LENGTH_TEXT.capitalize()} and speedup of every method", draw_methods)
