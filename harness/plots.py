"""Figures of results, with intervals: methods at a glance, acceptance by position, and sweeps of temperature and K.

Every method has one colour, marker and line style in all figures: the colours are told apart by colour-blind readers
(Okabe and Ito), the markers and lines in grey. matplotlib is imported when the first figure is drawn.
This module knows what to draw; it does not know where records lie.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, isnan
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, NamedTuple

from harness.comparison import method_name, method_rank
from harness.metrics import Cell
from harness.tables import SURROUNDINGS, drafter_name, label_suffix, target_name, varying

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class Look(NamedTuple):
    color: str
    marker: str
    linestyle: Any


LOOKS = {
    "strict": Look("#0072B2", "o", "-"),
    "coupled": Look("#E69F00", "s", "--"),
    "greedy": Look("#56B4E9", "X", ":"),
    "probabilistic": Look("#D55E00", "^", "-."),
    "block": Look("#009E73", "D", (0, (6, 1.5))),
    "typical": Look("#CC79A7", "v", ":"),
    "lenient": Look("#882255", "P", (0, (1, 1))),
    "synthetic": Look("#666666", "*", (0, (3, 1, 1, 1))),
    "pr35461": Look("#000000", "h", (0, (4, 2, 1, 2))),
}
SPARE_LOOKS = (
    Look("#332288", "<", "-"),
    Look("#88CCEE", ">", "--"),
    Look("#999933", "p", "-."),
    Look("#AA4499", "d", ":"),
)
"""For a second series of the same method: other parameters, other drafts."""

RC = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "lines.linewidth": 1.3,
    "lines.markersize": 4,
    "errorbar.capsize": 2,
    "legend.frameon": False,
    "figure.titlesize": 10.5,
    "savefig.dpi": 160,
    "pdf.fonttype": 42,
}
WITHOUT_DATES = {"png": {"Software": None}, "pdf": {"CreationDate": None}}
"""The same records give the same file, byte for byte, with the same version of matplotlib."""
CHARACTERS_PER_INCH = 11
"""Of the figure's title."""
LINE_INCHES = 0.19
"""Height of a line of text; a figure grows with its legend and title, so that the panels keep their size."""
MAX_TEMPERATURES = 3
"""Rows of the figure by position: the lowest, the middle and the highest temperature."""
LENGTH = "full_draft_length"
"""The acceptance length that is drawn: not mixed with drafts that the end of a request shortens."""
LENGTH_LABEL = "mean acceptance length\n(full drafts)"
SPEEDUP_LABEL = "speedup over the\nautoregressive baseline"


@dataclass(frozen=True)
class _Sheet:
    """Cells that go into the same figures, and what the figures have in common."""

    cells: tuple[Cell, ...]
    place: str
    """Names the target, and what else the cells share where a run varies it."""

    @property
    def drafters(self) -> list[str]:
        return list(dict.fromkeys(drafter_name(cell) for cell in self.cells))

    @property
    def temperatures(self) -> list[float]:
        return sorted({cell["temperature"] for cell in self.cells})

    @property
    def main_depth(self) -> int:
        """The K with the most cells, the largest of them."""
        counts = Counter(cell["num_speculative_tokens"] for cell in self.cells)
        return max(counts, key=lambda depth: (counts[depth], depth))

    @property
    def series(self) -> dict[tuple[str, str], tuple[str, Look]]:
        """(verification, draft sampling) -> (label, look), in the order of the methods."""
        keys: dict[tuple[str, str], Cell] = {}
        for cell in sorted(self.cells, key=method_rank):
            keys.setdefault((cell["verification"], cell["draft_sampling"]), cell)
        samplings = Counter(verification for verification, _ in keys)
        spare, used, found = iter(SPARE_LOOKS * 4), set(), {}
        for (verification, sampling), cell in keys.items():
            method = method_name(cell)
            look = LOOKS[method] if method in LOOKS and method not in used else next(spare)
            used.add(method)
            label = verification + (f", {sampling} drafts" if samplings[verification] > 1 else "")
            found[verification, sampling] = (label + label_suffix(cell), look)
        return found

    def select(self, **settings: Any) -> list[Cell]:
        """The cells with these settings; `drafter` is compared with `drafter_name`."""
        drafter = settings.pop("drafter", None)
        return [
            cell
            for cell in self.cells
            if (drafter is None or drafter_name(cell) == drafter)
            and all(cell[name] == value for name, value in settings.items())
        ]


def write_figures(cells: Sequence[Cell], folder: Path, formats: Sequence[str] = ("png",)) -> list[Path]:
    """Draw every figure the cells allow and write it to `folder`; returns the paths of the first format.

    Args:
        cells: the cells of a report; those without a drafter are drawn as the line at speedup 1 only.
        formats: file types that matplotlib can write, such as png and pdf.
    """
    import matplotlib as mpl

    paths = []
    for index, sheet in enumerate(_sheets(cells)):
        with mpl.rc_context(RC):
            for name, figure in _figures(sheet):
                stem = name if index == 0 else f"{name}_{index + 1}"
                folder.mkdir(parents=True, exist_ok=True)
                for kind in formats:
                    figure.savefig(folder / f"{stem}.{kind}", metadata=WITHOUT_DATES.get(kind))
                paths.append(folder / f"{stem}.{formats[0]}")
    return paths


def _sheets(cells: Sequence[Cell]) -> list[_Sheet]:
    drafted = [cell for cell in cells if not cell.is_baseline and cell.estimates.sums.num_positions]
    names = [name for name in varying(drafted, SURROUNDINGS) if name != "target"]
    found: dict[str, list[Cell]] = {}
    for cell in drafted:
        place = ", ".join([target_name(cell), *(f"{name} = {cell[name]}" for name in names)])
        found.setdefault(place, []).append(cell)
    return [_Sheet(tuple(items), place) for place, items in found.items()]


def _figures(sheet: _Sheet) -> Iterator[tuple[str, Figure]]:
    depth, warmest = sheet.main_depth, sheet.temperatures[-1]
    at_depth = _Sheet(tuple(sheet.select(num_speculative_tokens=depth)), sheet.place)
    at_warmest = _Sheet(tuple(sheet.select(temperature=warmest)), sheet.place)
    yield "methods", _methods(_Sheet(tuple(at_depth.select(temperature=at_depth.temperatures[-1])), sheet.place))
    yield "acceptance_by_position", _by_position(at_depth)
    if len(at_depth.temperatures) > 1:
        yield "by_temperature", _sweep(at_depth, "temperature", "temperature", f"K = {depth}")
    if len({cell["num_speculative_tokens"] for cell in at_warmest.cells}) > 1:
        label = "K, draft tokens per round"
        yield "by_depth", _sweep(at_warmest, "num_speculative_tokens", label, f"T = {warmest:g}")


def _grid(num_rows: int, num_columns: int, size: tuple[float, float], sharey: str) -> tuple[Figure, Any]:
    """A figure of panels of the given size in inches, [num_rows, num_columns] axes."""
    from matplotlib.figure import Figure

    width = max(4.6, size[0] * num_columns + 0.6)
    figure = Figure(figsize=(width, size[1] * num_rows + 1.0), layout="constrained")
    return figure, figure.subplots(num_rows, num_columns, squeeze=False, sharex="col", sharey=sharey)


def _finish(figure: Figure, what: str, where: str, sheet: _Sheet) -> Figure:
    """Title above, one legend for all panels below, as many columns as fit."""
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=look.color, marker=look.marker, linestyle=look.linestyle, label=label)
        for label, look in sheet.series.values()
    ]
    width = figure.get_figwidth()
    longest = max(len(label) for label, _ in sheet.series.values())
    num_rows = ceil(len(handles) / max(1, int(width / (0.07 * longest + 0.5))))
    figure.legend(handles=handles, loc="outside lower center", ncols=ceil(len(handles) / num_rows), handlelength=3.2)
    fitting = int(width * CHARACTERS_PER_INCH)
    title = f"{what} ({sheet.place}, {where})"
    if len(title) > fitting:
        title = f"{fill(what, fitting)}\n{fill(title[len(what) + 1 :], fitting)}"
    figure.suptitle(title)
    num_lines = num_rows - 1 + title.count("\n") + any("\n" in _wrapped(name) for name in sheet.drafters)
    figure.set_figheight(figure.get_figheight() + LINE_INCHES * num_lines)
    return figure


def _wrapped(drafter: str) -> str:
    """A drafter's name with its checkpoint on a second line."""
    return drafter.replace(" (", "\n(")


def _points(axes: Axes, look: Look, points: Sequence[tuple[float, Any]], *, horizontal: bool = False) -> None:
    """Points with error bars; (position on the category axis, Estimate). Undefined ones are left out."""
    shown = [(place, item) for place, item in points if not isnan(item.value)]
    if not shown:
        return
    places, values = [place for place, _ in shown], [item.value for _, item in shown]
    below = [0.0 if isnan(item.low) else max(0.0, item.value - item.low) for _, item in shown]
    above = [0.0 if isnan(item.high) else max(0.0, item.high - item.value) for _, item in shown]
    common = {"color": look.color, "marker": look.marker, "elinewidth": 1.0, "clip_on": True}
    if horizontal:
        axes.errorbar(values, places, xerr=[below, above], linestyle="none", **common)
    else:
        axes.errorbar(places, values, yerr=[below, above], linestyle=look.linestyle, **common)


def _offset(index: int, count: int, width: float) -> float:
    """Shifts the series of one place sideways, so that equal values do not hide each other."""
    return 0.0 if count == 1 else width * (index / (count - 1) - 0.5)


def _by_position(sheet: _Sheet) -> Figure:
    temperatures, drafters, series = _some(sheet.temperatures), sheet.drafters, sheet.series
    figure, grid = _grid(len(temperatures), len(drafters), (2.35, 1.95), "all")
    depth = sheet.main_depth
    for row, temperature in zip(grid, temperatures, strict=True):
        for axes, drafter in zip(row, drafters, strict=True):
            cells = sheet.select(drafter=drafter, temperature=temperature)
            for index, (key, (_, look)) in enumerate(series.items()):
                for cell in _of_series(cells, key):
                    last = cell.estimates.sums.num_positions
                    points = [
                        (
                            position + _offset(index, len(series), 0.4),
                            _percent(cell.estimate(f"acceptance_rate_per_pos_{position}")),
                        )
                        for position in range(1, last + 1)
                    ]
                    _points(axes, look, points)
            axes.set_ylim(0, 100)
            axes.set_xlim(0.6, depth + 0.4)
            axes.set_xticks(range(1, depth + 1))
        row[0].set_ylabel(f"T = {temperature:g}\nacceptance (%)")
    for axes, drafter in zip(grid[0], drafters, strict=True):
        axes.set_title(_wrapped(drafter))
    for axes in grid[-1]:
        axes.set_xlabel("draft position")
    return _finish(figure, "Acceptance by draft position", f"K = {depth}", sheet)


def _sweep(sheet: _Sheet, setting: str, label: str, fixed: str) -> Figure:
    """Acceptance length, and speedup where there is a baseline, against one setting; a column per drafter."""
    drafters, series = sheet.drafters, sheet.series
    has_speedup = any(not isnan(cell.speedup.value) for cell in sheet.cells)
    rows = [(LENGTH, LENGTH_LABEL), *([("speedup", SPEEDUP_LABEL)] if has_speedup else [])]
    figure, grid = _grid(len(rows), len(drafters), (2.35, 2.1), "row")
    ticks = sorted({cell[setting] for cell in sheet.cells})
    gap = min(after - before for before, after in pairwise(ticks))
    for row, (name, row_label) in zip(grid, rows, strict=True):
        for axes, drafter in zip(row, drafters, strict=True):
            cells = sheet.select(drafter=drafter)
            for index, (key, (_, look)) in enumerate(series.items()):
                shift = _offset(index, len(series), min(0.3 * gap, 0.08 * (ticks[-1] - ticks[0])))
                points = [(cell[setting] + shift, cell.estimate(name)) for cell in _of_series(cells, key)]
                _points(axes, look, sorted(points, key=lambda point: point[0]))
            axes.axhline(1, color="#777777", linewidth=0.9)
            axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        row[0].set_ylabel(row_label)
    for axes, drafter in zip(grid[0], drafters, strict=True):
        axes.set_title(_wrapped(drafter))
    for axes in grid[-1]:
        axes.set_xlabel(label)
    short = "K" if setting == "num_speculative_tokens" else label
    what = "Acceptance length and speedup" if has_speedup else "Acceptance length"
    return _finish(figure, f"{what} against {short}", fixed, sheet)


def _methods(sheet: _Sheet) -> Figure:
    """Acceptance length and speedup of every method, drafter by drafter, at one temperature and K."""
    drafters, series = sheet.drafters, sheet.series
    has_speedup = any(not isnan(cell.speedup.value) for cell in sheet.cells)
    columns = [(LENGTH, LENGTH_LABEL.replace("\n", " "))]
    columns += [("speedup", "speedup over the baseline")] if has_speedup else []
    figure, grid = _grid(1, len(columns), (3.4, max(1.1, 0.22 * len(series) * len(drafters) + 0.35)), "all")
    for axes, (name, label) in zip(grid[0], columns, strict=True):
        for index, (key, (_, look)) in enumerate(series.items()):
            points = [
                (place + _offset(index, len(series), 0.66), cell.estimate(name))
                for place, drafter in enumerate(drafters)
                for cell in _of_series(sheet.select(drafter=drafter), key)
            ]
            _points(axes, look, points, horizontal=True)
        axes.axvline(1, color="#777777", linewidth=0.9)
        axes.set_xlabel(label)
        axes.set_yticks(range(len(drafters)), [_wrapped(drafter) for drafter in drafters])
        axes.set_ylim(len(drafters) - 0.5, -0.5)
        axes.grid(axis="y", visible=False)
        for border in range(1, len(drafters)):
            axes.axhline(border - 0.5, color="#DDDDDD", linewidth=0.6)
    where = f"K = {sheet.main_depth}, T = {sheet.temperatures[0]:g}"
    return _finish(figure, "Verification methods", where, sheet)


def _of_series(cells: Sequence[Cell], key: tuple[str, str]) -> list[Cell]:
    return [cell for cell in cells if (cell["verification"], cell["draft_sampling"]) == key]


def _percent(estimate: Any) -> Any:
    return type(estimate)(*(100 * item for item in estimate))


def _some(values: Sequence[float]) -> list[float]:
    """At most MAX_TEMPERATURES of the values: the ends and the middle."""
    if len(values) <= MAX_TEMPERATURES:
        return list(values)
    return [values[0], values[len(values) // 2], values[-1]]
