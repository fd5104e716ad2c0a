"""The figure of methods at a glance: acceptance length and speedup, drafter by drafter, at one temperature and K."""

from __future__ import annotations

from itertools import product
from math import isnan
from typing import TYPE_CHECKING

from harness.report.figures.panels import draw_points, finish, grid, offset, point, wrapped
from harness.report.figures.sheet import Sheet
from harness.report.figures.style import REFERENCE_LINE, SEPARATOR
from harness.report.figures.sweep import LENGTH, LENGTH_LABEL

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_methods(sheet: Sheet) -> Figure:
    """The methods at the main K and the highest temperature of a sheet."""
    sheet = sheet.narrowed(())
    drafters, series = sheet.drafters, sheet.series
    has_speedup = any(not isnan(cell.speedup.value) for cell in sheet.cells)
    columns = [(LENGTH, LENGTH_LABEL.replace("\n", " "))]
    columns += [("speedup", "speedup over the baseline")] if has_speedup else []
    height = max(1.1, 0.22 * len(series) * len(drafters) + 0.35)
    parts = sheet.parts
    figure, panels = grid(len(parts), len(columns), (3.4, height), sharey="all")
    for axes, ((place, part), (name, label)) in zip(panels.flat, product(parts, columns), strict=True):
        for index, (key, (_, look)) in enumerate(series.items()):
            points = [
                point(row + offset(index, len(series), 0.66), cell, name)
                for row, drafter in enumerate(drafters)
                for cell in sheet.of_series(part.select(drafter=drafter), key)
            ]
            draw_points(axes, look, points, horizontal=True)
        axes.axvline(1, color=REFERENCE_LINE, linewidth=0.9)
        axes.set_xlabel(label if part is parts[-1][1] else "")
        axes.set_title(place if name == LENGTH else "", loc="left")
        axes.set_yticks(range(len(drafters)), [wrapped(drafter) for drafter in drafters])
        axes.set_ylim(len(drafters) - 0.5, -0.5)
        axes.grid(axis="y", visible=False)
        for border in range(1, len(drafters)):
            axes.axhline(border - 0.5, color=SEPARATOR, linewidth=0.6)
    return finish(
        figure,
        "Verification methods",
        ", ".join(sheet.fixed(())),
        sheet,
        shows_times=True,
    )
