"""What figures are put together from: a grid of panels, points with error bars, a title and one legend.

matplotlib is imported when the first figure is drawn. This module does not know what is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, isnan
from textwrap import fill
from typing import TYPE_CHECKING, Any, NamedTuple

from harness.analysis.cell import CellResult
from harness.analysis.definitions import metric
from harness.analysis.estimates import Estimate
from harness.report.cell_names import is_disturbed
from harness.report.figures.sheet import Sheet
from harness.report.figures.style import Look

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CHARACTERS_PER_INCH = 11
"""Of the figure's title."""
FEW_SERIES = 5
"""Lines of more hide each other."""
NAME_INCHES = 0.065
"""Width of a letter of a row's name."""
LINE_INCHES = 0.19
"""Height of a line of text; a figure grows with its legend and title, so that the panels keep their size."""
MIN_WIDTH_INCHES = 4.6
MAX_COLUMNS = 4
"""Of panels that could go on in one row."""
PANEL_CHARACTERS = 34
"""Of a line of a panel's title."""
HOLLOW = "hollow: disturbed (†)"


def grid(
    num_rows: int, num_columns: int, size: tuple[float, float], *, sharex: str = "col", sharey: str
) -> tuple[Figure, Any]:
    """A figure of panels of the given size in inches, [num_rows, num_columns] axes."""
    from matplotlib.figure import Figure

    width = max(MIN_WIDTH_INCHES, size[0] * num_columns + 0.6)
    figure = Figure(figsize=(width, size[1] * num_rows + 1.0), layout="constrained")
    return figure, figure.subplots(num_rows, num_columns, squeeze=False, sharex=sharex, sharey=sharey)


class Panel(NamedTuple):
    """What one panel shows."""

    place: str
    """What tells its part of the sheet apart."""
    drafter: str
    """Empty where all panels have the same, and a place."""
    sheet: Sheet

    @property
    def title(self) -> str:
        """In lines that fit a narrow panel."""
        return "\n".join(filter(None, (wrap_settings(self.place, PANEL_CHARACTERS), wrapped(self.drafter))))

    @property
    def title_in_one_line(self) -> str:
        return ", ".join(filter(None, (self.place, self.drafter)))


def panel_rows(sheet: Sheet) -> list[list[Panel]]:
    """A row per part of a sheet and a column per drafter; parts of one drafter side by side."""
    drafters = sheet.drafters
    rows = [
        [
            Panel(place, drafter if len(drafters) > 1 or not place else "", part.part(drafter=drafter))
            for drafter in drafters
        ]
        for place, part in sheet.parts
    ]
    if len(drafters) > 1:
        return rows
    panels = [row[0] for row in rows]
    return [panels[start : start + MAX_COLUMNS] for start in range(0, len(panels), MAX_COLUMNS)]


def rows_of(sheet: Sheet, cells: Sequence[CellResult]) -> list[tuple[str, str]]:
    """The series that some cells of a sheet belong to, in the order of the whole sheet."""
    return [key for key in sheet.series if sheet.of_series(cells, key)]


def widen_for_names(figure: Figure, sheet: Sheet) -> None:
    """Make room for the names of series beside their rows, so that the panels keep their size."""
    longest = max(len(label) for label, _ in sheet.series.values())
    figure.set_figwidth(figure.get_figwidth() + NAME_INCHES * longest)


class Point(NamedTuple):
    """A value at a place on the axis of categories."""

    place: float
    estimate: Estimate
    is_disturbed: bool = False
    """Drawn hollow."""


def point(place: float, cell: CellResult, name: str) -> Point:
    """A metric of a cell."""
    return Point(place, cell.estimate(name), not metric(name).of_tokens and is_disturbed(cell))


class LegendEntry(NamedTuple):
    """Of a legend, beside the series."""

    label: str
    style: dict[str, Any]


def finish(
    figure: Figure,
    what: str,
    where: str,
    sheet: Sheet,
    *,
    shows_times: bool = False,
    names_series: bool = True,
    more: Sequence[LegendEntry] = (),
) -> Figure:
    """Title above, one legend for all panels below, as many columns as fit.

    Args:
        names_series: in the legend; not where the panels do.
    """
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=look.color, marker=look.marker, linestyle=look.linestyle, label=label)
        for label, look in (sheet.series.values() if names_series else ())
    ]
    if shows_times and any(map(is_disturbed, sheet.cells)):
        handles.append(Line2D([], [], color="black", marker="o", markerfacecolor="white", linestyle="", label=HOLLOW))
    handles += [Line2D([], [], color="black", label=label, **style) for label, style in more]
    if not handles:
        return with_title(figure, what, where, sheet)
    longest = max(len(line) for handle in handles for line in handle.get_label().split("\n"))
    entry_inches = 0.07 * longest + 0.5
    # a legend that is wider than the figure would be cut off
    figure.set_figwidth(max(figure.get_figwidth(), entry_inches + 0.2))
    num_rows = ceil(len(handles) / max(1, int(figure.get_figwidth() / entry_inches)))
    figure.legend(handles=handles, loc="outside lower center", ncols=ceil(len(handles) / num_rows), handlelength=3.2)
    num_lines = num_rows - 1 + max(handle.get_label().count("\n") for handle in handles)
    num_lines += sum(max(panel.title.count("\n") for panel in row) for row in panel_rows(sheet))
    return with_title(figure, what, where, sheet, num_lines)


def with_title(figure: Figure, what: str, where: str, sheet: Sheet, num_lines: int = 0) -> Figure:
    """Title above, broken where it does not fit; the figure grows by its lines and by num_lines of other text."""
    fitting = int(figure.get_figwidth() * CHARACTERS_PER_INCH)
    title = f"{what} ({', '.join(part for part in (sheet.place, where) if part)})"
    if len(title) > fitting:
        title = f"{fill(what, fitting)}\n{wrap_settings(title[len(what) + 1 :], fitting)}"
    figure.suptitle(title)
    figure.set_figheight(figure.get_figheight() + LINE_INCHES * (num_lines + title.count("\n")))
    return figure


def wrap_settings(text: str, width: int) -> str:
    """Lines of a text, none of which ends within `name = value`."""
    whole = "\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}"
    return fill(text.replace(" = ", whole), width).replace(whole, " = ")


def wrapped(drafter: str) -> str:
    """A drafter's name with its checkpoint on a second line."""
    return drafter.replace(" (", "\n(")


def draw_points(axes: Axes, look: Look, points: Sequence[Point], *, horizontal: bool = False) -> None:
    """Points with error bars. Undefined ones are left out."""
    shown = [item for item in points if not isnan(item.estimate.value)]
    if not shown:
        return
    places, values = [item.place for item in shown], [item.estimate.value for item in shown]
    below = [0.0 if isnan(item.low) else max(0.0, item.value - item.low) for _, item, _ in shown]
    above = [0.0 if isnan(item.high) else max(0.0, item.high - item.value) for _, item, _ in shown]
    common = {"color": look.color, "marker": look.marker, "elinewidth": 1.0, "clip_on": True}
    if horizontal:
        axes.errorbar(values, places, xerr=[below, above], linestyle="none", **common)
    else:
        axes.errorbar(places, values, yerr=[below, above], linestyle=look.linestyle, **common)
    for place, item, is_disturbed_point in shown:
        if is_disturbed_point:
            across, up = (item.value, place) if horizontal else (place, item.value)
            axes.plot([across], [up], color=look.color, marker=look.marker, markerfacecolor="white", zorder=5)


def offset(index: int, count: int, width: float) -> float:
    """Shifts the series of one place sideways, so that equal values do not hide each other."""
    return 0.0 if count == 1 else width * (index / (count - 1) - 0.5)
