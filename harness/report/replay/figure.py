"""The figure of a replay: every method on the drafts of each cell, and its difference from probabilistic.

matplotlib is imported when the figure is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd

from harness.analysis.cell import CellResult
from harness.analysis.columns import with_interval
from harness.analysis.comparison import method_name, method_rank
from harness.analysis.estimates import Estimate
from harness.analysis.replay.estimators import Estimator, rule_name
from harness.analysis.replay.replayed import SAMPLED, Replayed, series_name
from harness.report.cell_names import drafter_name
from harness.report.figures.style import LOOKS, RC, REFERENCE_LINE, Look, spare_looks
from harness.report.figures.sweep import LENGTH_LABEL
from harness.report.figures.write import save_figure
from kernels.methods import VerificationMethod
from kernels.verification import Verification

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COMPARED_WITH = VerificationMethod.probabilistic.value
PANEL_INCHES = (3.2, 2.0)
LEGEND_INCHES = 0.19
"""Height of a row of the legend."""
HOLLOW: dict[str, Any] = {"markerfacecolor": "white"}
"""Sampled values are drawn hollow, replayed ones filled."""


class _Series(NamedTuple):
    rule: Verification
    look: Look
    shift: float
    """Sideways, so that equal values do not hide each other."""


def write_figure(
    replayed: Sequence[Replayed], differences: pd.DataFrame, folder: Path, formats: Sequence[str] = ("png",)
) -> list[Path]:
    """Draw the figure, a column per run, target, drafter, K and temperature; returns the paths of its files."""
    import matplotlib as mpl

    folder.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(RC):
        figure = _draw(replayed, differences)
        paths = [folder / f"replay.{kind}" for kind in formats]
        for path in paths:
            save_figure(figure, path)
    return paths


def _draw(replayed: Sequence[Replayed], differences: pd.DataFrame) -> Figure:
    from matplotlib.figure import Figure

    panels: dict[str, list[Replayed]] = {}
    for item in sorted(replayed, key=lambda item: method_rank(item.cell)):
        panels.setdefault(_place(item.cell), []).append(item)
    series = _series(replayed)
    width, height = max(4.6, PANEL_INCHES[0] * len(panels)), 2 * PANEL_INCHES[1] + 1.0
    num_columns = max(2, int(width / 2.0))
    num_legend_rows = -(-(len(series) + 1) // num_columns)
    figure = Figure(figsize=(width, height + LEGEND_INCHES * num_legend_rows), layout="constrained")
    grid = figure.subplots(2, len(panels), squeeze=False, sharex="col", sharey="row")
    for (upper, lower), (place, items) in zip(grid.T, panels.items(), strict=True):
        upper.set_title(place)
        _draw_lengths(upper, items, series)
        _draw_differences(lower, items, series, differences)
    grid[0, 0].set_ylabel(LENGTH_LABEL)
    grid[1, 0].set_ylabel(f"length less that of\n{COMPARED_WITH}")
    _add_legend(figure, series, num_columns)
    figure.suptitle("Same drafts (filled), sampled (hollow)")
    return figure


def _place(cell: CellResult) -> str:
    """What the cells of a column share."""
    weights = f"\n{cell['labels']}" if "weights" in cell["labels"] else ""
    name = f"{cell['target']} · {drafter_name(cell)}\nK = {cell['num_speculative_tokens']}, T = {cell['temperature']:g}"
    cache = f"\n{cell.cache_text}" if cell.cache_text else ""
    return f"{cell['run']}\n{name}{cache}{weights}"


def _series(replayed: Sequence[Replayed]) -> list[_Series]:
    """One look per method in all figures; further parameters of a method take the spare ones."""
    spare, used, looks = spare_looks(), set(), {}
    for rule in dict.fromkeys(rule for item in replayed for rule in item.rules):
        name = rule.method.value
        looks[rule] = LOOKS[name] if name in LOOKS and name not in used else next(spare)
        used.add(name)
    step = 0.8 / len(looks)
    return [_Series(rule, look, step * (index + 1) - 0.4) for index, (rule, look) in enumerate(looks.items())]


def _draw_lengths(axes: Axes, items: Sequence[Replayed], series: Sequence[_Series]) -> None:
    for place, item in enumerate(items):
        for rule, look, shift in series:
            if rule in item.rules:
                _point(axes, place + shift, item.estimate(series_name(rule, Estimator.given)), look)
        name = method_name(item.cell)
        own = next((each.look for each in series if each.rule == item.own_rule), LOOKS.get(name) or next(spare_looks()))
        _point(axes, place - 0.4, item.estimate(SAMPLED), own, **HOLLOW)
    axes.set_xlim(-0.6, len(items) - 0.4)
    axes.grid(axis="x", visible=False)


def _draw_differences(axes: Axes, items: Sequence[Replayed], series: Sequence[_Series], frame: pd.DataFrame) -> None:
    axes.axhline(0, color=REFERENCE_LINE, linewidth=0.9)
    for place, item in enumerate(items):
        for rule, look, shift in series:
            for name, moved, style in (("difference", 0.0, {}), ("sampled_difference", 0.04, HOLLOW)):
                found = _difference(frame, item.cell, rule_name(rule), name)
                if found is not None and not isnan(found.value):
                    _point(axes, place + shift + moved, found, look, **style)
    axes.set_xticks(range(len(items)), [method_name(item.cell) for item in items], rotation=20)
    axes.set_xlabel("drafts of")
    axes.grid(axis="x", visible=False)


def _difference(frame: pd.DataFrame, cell: CellResult, rule: str, name: str) -> Estimate | None:
    """A rule's length less that of COMPARED_WITH, on a cell's drafts."""
    of_cell = frame[(frame["run"] == cell["run"]) & (frame["cell_id"] == cell["cell_id"])]
    of_cell = of_cell[of_cell["estimator"] == Estimator.given.value]
    for first, second, sign in ((COMPARED_WITH, rule, 1.0), (rule, COMPARED_WITH, -1.0)):
        found = of_cell[(of_cell["first"] == first) & (of_cell["second"] == second)]
        if len(found):
            value, low, high = (sign * float(found.iloc[0][column]) for column in with_interval(name))
            return Estimate(value, min(low, high), max(low, high))
    return None


def _point(axes: Axes, place: float, estimate: Estimate, look: Look, **style: Any) -> None:
    """A point with its interval, if it has one."""
    below, above = estimate.value - estimate.low, estimate.high - estimate.value
    error = None if isnan(below) else [[max(0.0, below)], [max(0.0, above)]]
    common: dict[str, Any] = {"color": look.color, "marker": look.marker, "linestyle": "none", "elinewidth": 1.0}
    axes.errorbar([place], [estimate.value], yerr=error, **common, **style)


def _add_legend(figure: Figure, series: Sequence[_Series], num_columns: int) -> None:
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=each.look.color, marker=each.look.marker, linestyle="none", label=rule_name(each.rule))
        for each in series
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=num_columns)
