"""Heat maps of two-way sweeps: two settings that were both swept, with the value and half its interval in every cell.

A cell that was not run is hatched. A cell whose method follows the same law as another method at the same settings is
marked: what differs between the two is noise. So is one with labels, such as lossy, where the names along the sides do
not hold them. A panel for every drafter and method that is not on an axis.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations, product
from math import ceil, isnan
from typing import TYPE_CHECKING, Any

from harness.analysis.cell import CellResult
from harness.analysis.comparison import ids_of_same_law
from harness.analysis.definitions import metric
from harness.report.cell_names import DISTURBED, is_disturbed
from harness.report.figures.axis import DRAFTER, DRAFTING, METHOD, NUMBER_AXES, VERIFICATION, HeatAxis, number
from harness.report.figures.kinds import FigureKind
from harness.report.figures.panels import LINE_INCHES, grid, with_title
from harness.report.figures.sheet import Sheet
from harness.report.figures.style import HEAT_COLORS, NOT_RUN_LOOK, SAME_LAW_MARK, SAME_LAW_TEXT
from harness.report.number_format import format_value, without_width_zero

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_COLUMNS = 4
IN_FILES = {"full_draft_length": "length", "speedup": "speedup"}
"""Column of a metric -> its place in the names of files."""
CELL_INCHES = {"number": 0.72, "category": 1.0}
"""Least width of a cell, by what lies across."""
CHARACTER_INCHES = 0.08
"""Width of a character at a tick."""
ROW_INCHES = 0.5
"""Least height of a cell."""
TICK_LINE_INCHES = 0.15
"""Height of a line of a name at a tick."""
MAX_NAMES_ACROSS = 7
"""More names than that go down the side, where they have room."""
WIDE_INCHES = 7.0
"""A figure so wide takes its legend in one line."""
LABEL_MARK = "*"
DARK = 0.45
"""Lightness below which white text has more contrast than black."""
NOT_RUN = "not run"
DISTURBED_TEXT = f"{DISTURBED} disturbed, see the warnings"
HALF_WIDTH_TEXT = "±: half the width of the interval"


def draw_heat_map(sheet: Sheet, across: HeatAxis, down: HeatAxis, name: str) -> Figure | None:
    """A heat map of one metric, other numbers at the main K and the highest temperature.

    Args:
        across, down: the two settings.
        name: column of the metric.

    Returns:
        None where the two were not swept against each other, or the metric has no value.
    """
    numbers = [side.axis.name for side in (across, down) if side.axis]
    sheet = sheet.narrowed(numbers)
    fixed = sheet.fixed(numbers)
    crossed = [cell for _, part in sheet.parts if _is_crossed(part, across, down) for cell in part.cells]
    sheet = replace(sheet, cells=tuple(crossed))
    if all(isnan(cell.estimate(name).value) for cell in sheet.cells):
        return None
    if across.axis is None and len(down.places(sheet)) < MAX_NAMES_ACROSS < len(across.places(sheet)):
        across, down = down, across
    by_method = not {METHOD, VERIFICATION} & {across, down} and len(METHOD.places(sheet)) > 1
    panels = _panels(sheet, across, down, by_method)
    columns, rows = across.places(sheet), down.places(sheet)
    num_columns = min(MAX_COLUMNS, len(METHOD.places(sheet)) if by_method else len(panels))
    size = (_cell_inches(across, columns) * len(columns) + 0.45, _row_inches(down, rows) * len(rows) + 0.35)
    figure, axes = grid(ceil(len(panels) / num_columns), num_columns, size, sharex="none", sharey="none")
    labels = {cell.record.cell_id: cell["labels"] for cell in sheet.cells} if VERIFICATION in (across, down) else {}
    image = _draw_panels(list(axes.flat), panels, (across, down), name, _marks(sheet, name, labels), sheet)
    _label_sides(axes, len(panels), (across, down), sheet)
    figure.colorbar(image, ax=axes, label=metric(name).label, pad=0.02, aspect=30)
    label_texts = list(dict.fromkeys(text for text in labels.values() if text))
    _add_legend(figure, sheet, name, label_texts, len(panels) * len(columns) * len(rows) > len(sheet.cells))
    what = f"{metric(name).label.capitalize()} by {across.short} and {down.short}"
    num_lines = max(title.count("\n") for title in panels) + max(across.tick(place).count("\n") for place in columns)
    return with_title(figure, what, ", ".join(fixed), sheet, num_lines)


def _cell_inches(across: HeatAxis, places: Sequence[Any]) -> float:
    """A width at which the names below neighbouring cells stay apart."""
    longest = max(len(line) for place in places for line in across.tick(place).split("\n"))
    return max(CELL_INCHES["number" if across.axis else "category"], CHARACTER_INCHES * (longest + 1))


def _row_inches(down: HeatAxis, places: Sequence[Any]) -> float:
    """A height at which the names beside neighbouring cells stay apart."""
    most = max(down.tick(place).count("\n") + 1 for place in places)
    return max(ROW_INCHES, TICK_LINE_INCHES * (most + 0.5))


def _label_sides(axes, num_panels: int, sides, sheet: Sheet) -> None:
    """Names of places and axes at the left and below the lowest panel of every column only."""
    across, down = sides
    num_columns = axes.shape[1]
    for index, panel in enumerate(axes.flat):
        is_lowest, is_first = index + num_columns >= num_panels, index % num_columns == 0
        columns, rows = across.places(sheet), down.places(sheet)
        panel.set_xticks(range(len(columns)), [across.tick(place) if is_lowest else "" for place in columns])
        panel.set_yticks(range(len(rows)), [down.tick(place) if is_first else "" for place in rows])
        if is_lowest:
            panel.set_xlabel(across.label)
        if is_first:
            panel.set_ylabel(down.short)


def _add_legend(figure: Figure, sheet: Sheet, name: str, labels: Sequence[str], has_holes: bool) -> None:
    """What the marks mean, those that occur."""
    from matplotlib.patches import Patch

    handles = [Patch(visible=False, label=HALF_WIDTH_TEXT)]
    handles += [Patch(visible=False, label=f"{SAME_LAW_MARK} {SAME_LAW_TEXT}")] if _with_same_law(sheet, name) else []
    handles += [Patch(visible=False, label=DISTURBED_TEXT)] if _disturbed(sheet, name) else []
    handles += [Patch(visible=False, label=f"{LABEL_MARK} {' or '.join(labels)}")] if labels else []
    handles += [Patch(**NOT_RUN_LOOK, label=NOT_RUN)] if has_holes else []
    ncols = 1 if figure.get_figwidth() < WIDE_INCHES else len(handles)
    figure.legend(handles=handles, loc="outside lower center", ncols=ncols, fontsize="small", borderpad=0.6)
    figure.set_figheight(figure.get_figheight() + LINE_INCHES * ceil(len(handles) / ncols))


def _is_crossed(sheet: Sheet, across: HeatAxis, down: HeatAxis) -> bool:
    """Whether both settings take enough values, each at one value of the other at least."""
    if not sheet.cells or len(across.places(sheet)) < across.least or len(down.places(sheet)) < down.least:
        return False
    taken = {(across.place(sheet, cell), down.place(sheet, cell)) for cell in sheet.cells}
    firsts, seconds = zip(*taken, strict=True)
    return all(max(map(side.count, set(side))) >= 2 for side in (firsts, seconds))


def _panels(sheet: Sheet, across: HeatAxis, down: HeatAxis, by_method: bool) -> dict[str, list[CellResult]]:
    """Title -> cells, for every part of the sheet, drafter and method that is on neither axis."""
    by_drafter = DRAFTER not in (across, down) and len(DRAFTER.places(sheet)) > 1
    drafters = DRAFTER.places(sheet) if by_drafter else [None]
    methods = METHOD.places(sheet) if by_method else [None]
    found = {}
    for (place, part), drafter, method in product(sheet.parts, drafters, methods):
        cells = [
            cell
            for cell in part.cells
            if drafter in (None, DRAFTER.place(sheet, cell)) and method in (None, METHOD.place(sheet, cell))
        ]
        title = "\n".join(text for text in (place.replace(", ", "\n"), drafter, method) if text)
        if cells:
            found[title] = cells
    return found


def _draw_panels(
    panel_axes: Sequence[Axes],
    panels: dict[str, list[CellResult]],
    sides,
    name: str,
    marks: Mapping[str, str],
    sheet: Sheet,
) -> Any:
    """Draw every panel on one scale of colours; returns the last image, for the colour bar."""
    shown = [cell.estimate(name).value for cells in panels.values() for cell in cells]
    defined = [value for value in shown if not isnan(value)]
    image = None
    for axes, (title, cells) in zip(panel_axes, panels.items(), strict=False):
        image = _draw_panel(axes, sheet, cells, sides, name, (min(defined), max(defined)), marks)
        axes.set_title(title)
    for axes in panel_axes[len(panels) :]:
        axes.set_axis_off()
    return image


def _marks(sheet: Sheet, name: str, labels: Mapping[str, str]) -> dict[str, str]:
    """The note that follows the value of a cell, by its id."""
    degenerate = _with_same_law(sheet, name)
    disturbed = _disturbed(sheet, name)
    ids = [cell.record.cell_id for cell in sheet.cells]
    return {
        each: (LABEL_MARK if labels.get(each) else "")
        + (f" {SAME_LAW_MARK}" if each in degenerate else "")
        + (f" {DISTURBED}" if each in disturbed else "")
        for each in ids
    }


def _with_same_law(sheet: Sheet, name: str) -> set[str]:
    """The ids of cells beside which another method follows the same law; empty for a metric that is not of tokens."""
    return ids_of_same_law(sheet.cells) if metric(name).of_tokens else set()


def _disturbed(sheet: Sheet, name: str) -> set[str]:
    """The ids of disturbed cells, if the metric is one of times."""
    return set() if metric(name).of_tokens else {cell.record.cell_id for cell in sheet.cells if is_disturbed(cell)}


def _draw_panel(
    axes: Axes, sheet: Sheet, cells: Sequence[CellResult], sides, name, limits, marks: Mapping[str, str]
) -> Any:
    across, down = sides
    columns, rows = list(across.places(sheet)), list(down.places(sheet))
    values = [[float("nan")] * len(columns) for _ in rows]
    texts: dict[tuple[int, int], list[str]] = {}
    for cell in cells:
        row, column = rows.index(down.place(sheet, cell)), columns.index(across.place(sheet, cell))
        values[row][column] = cell.estimate(name).value
        texts.setdefault((row, column), []).append(_cell_text(cell, name, marks[cell.record.cell_id]))
    image = axes.imshow(values, cmap=HEAT_COLORS, vmin=limits[0], vmax=limits[1], aspect="auto")
    for row, column in product(range(len(rows)), range(len(columns))):
        _write(axes, image, row, column, values[row][column], texts.get((row, column), []))
    axes.grid(visible=False)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    for number_of, line in ((len(columns), axes.axvline), (len(rows), axes.axhline)):
        for border in range(1, number_of):
            line(border - 0.5, color="white", linewidth=1)
    return image


def _cell_text(cell: CellResult, name: str, mark: str) -> str:
    """The value with its mark and, below it, half the width of its interval."""
    item, estimate = metric(name), cell.estimate(name)
    shown = estimate if item.of_tokens else without_width_zero(estimate)
    half = (shown.high - shown.low) / 2
    below = "" if isnan(half) else f"\n±{format_value(half, item.style)}"
    return format_value(shown.value, item.style) + mark + below


def _write(axes: Axes, image: Any, row: int, column: int, value: float, texts: Sequence[str]) -> None:
    from matplotlib.patches import Rectangle

    if not texts:
        axes.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, **NOT_RUN_LOOK))
        return
    text = texts[0] if len(texts) == 1 else f"{len(texts)} cells"
    red, green, blue = (1.0, 1.0, 1.0) if isnan(value) else image.cmap(image.norm(value))[:3]
    is_dark = 0.299 * red + 0.587 * green + 0.114 * blue < DARK
    axes.text(column, row, text, ha="center", va="center", fontsize=7.5, color="white" if is_dark else "black")


def _heat_maps(across: HeatAxis, down: HeatAxis) -> list[FigureKind]:
    axes = tuple(side.axis.name for side in (across, down) if side.axis)
    return [
        FigureKind(
            f"{short}_by_{across.stem}_and_{down.stem}",
            f"{metric(name).label.capitalize()} by {across.short} and {down.short}",
            partial(draw_heat_map, across=across, down=down, name=name),
            axes,
        )
        for name, short in IN_FILES.items()
    ]


_PAIRS = [(number(first), number(second)) for first, second in combinations(NUMBER_AXES, 2)]
HEAT_MAPS = tuple(kind for pair in [*_PAIRS, (VERIFICATION, DRAFTING), (METHOD, DRAFTER)] for kind in _heat_maps(*pair))
