"""The figure of lossy methods: acceptance length against the distance from the target, drafter by drafter.

Where the distance comes from is not known here: the sheet has it for the cells that recorded it.
"""

from __future__ import annotations

from math import isnan
from typing import TYPE_CHECKING

from harness.analysis.cell import CellResult
from harness.analysis.estimates import Estimate
from harness.report.figures.kinds import FigureKind
from harness.report.figures.panels import finish, grid, panel_rows
from harness.report.figures.sheet import Sheet
from harness.report.figures.style import Look
from harness.report.figures.sweep import LENGTH, LENGTH_LABEL, LENGTH_TEXT
from harness.report.number_format import scaled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DISTANCE_LABEL = "total variation from the\ntarget's distribution (%)"
NO_DISTANCE = Estimate(0.0, 0.0, 0.0)


def draw_tradeoff(sheet: Sheet) -> Figure | None:
    """The methods at the main K and the highest temperature; None where no lossy one recorded its distance."""
    sheet = sheet.narrowed(()).with_distance()
    if not any(cell["guarantee"] == "lossy" for cell in sheet.cells):
        return None
    blocks = panel_rows(sheet)
    figure, grid_axes = grid(len(blocks), len(blocks[0]), (3.4, 2.4), sharex="none", sharey="all")
    for row, panels in zip(grid_axes, blocks, strict=True):
        for axes, panel in zip(row, panels, strict=False):
            for key, (_, look) in sheet.series.items():
                for cell in sheet.of_series(panel.sheet.cells, key):
                    _draw_point(axes, look, _distance(sheet, cell), cell.estimate(LENGTH))
            axes.set_title(panel.title)
            axes.set_xlabel(DISTANCE_LABEL)
        for axes in row[len(panels) :]:
            axes.set_axis_off()
        row[0].set_ylabel(LENGTH_LABEL)
    return finish(figure, f"{LENGTH_TEXT.capitalize()} against distance", ", ".join(sheet.fixed(())), sheet)


def _distance(sheet: Sheet, cell: CellResult) -> Estimate:
    """In percent; lossless methods have none by definition, whatever rounding leaves."""
    return NO_DISTANCE if cell["guarantee"] == "lossless" else scaled(sheet.distances[cell.record.cell_id], 100)


def _draw_point(axes: Axes, look: Look, across: Estimate, up: Estimate) -> None:
    """A value with those of its two intervals that are defined."""
    bars = [
        [[0.0 if isnan(side) else abs(side - item.value)] for side in (item.low, item.high)] for item in (across, up)
    ]
    axes.errorbar(
        [across.value],
        [up.value],
        xerr=bars[0],
        yerr=bars[1],
        linestyle="none",
        color=look.color,
        marker=look.marker,
        elinewidth=1.0,
    )


BY_DISTANCE = FigureKind(
    "length_by_distance", f"{LENGTH_TEXT.capitalize()} against distance from the target", draw_tradeoff
)
