"""The figures of a report, in order. A new one: a file with its drawing, and an entry here.

A kind draws one sheet (`harness.report.figures.sheet`) and returns None where it has nothing to show.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import TYPE_CHECKING

from harness.report.cell_names import CONTEXT
from harness.report.figures.axis import (
    CONTEXT_AXES,
    DEPTH,
    DRAFTER,
    DRAFTING,
    METHOD,
    NUMBER_AXES,
    TEMPERATURE,
    VERIFICATION,
    Axis,
    HeatAxis,
    number,
)
from harness.report.figures.by_position import draw_by_position, shown_by_position
from harness.report.figures.heat_map import draw_heat_map
from harness.report.figures.methods import draw_methods
from harness.report.figures.sheet import Sheet
from harness.report.figures.sweep import LENGTH, draw_sweep
from harness.report.figures.tradeoff import draw_tradeoff

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class FigureKind:
    """A kind of figure."""

    name: str
    """Of its files."""
    text: str
    """What it shows, printed with it."""
    draw: Callable[[Sheet], Figure | None]
    axes: tuple[str, ...] = ()
    """Settings that it has on an axis."""
    narrow: Callable[[Sheet], Sheet] | None = None
    """Of its sheet, the part that it draws; None is the main K and the highest temperature, but for its axes."""

    @property
    def along(self) -> tuple[str, ...]:
        """Those of CONTEXT among them; cells that differ in another one have panels of their own."""
        return tuple(name for name in self.axes if name in CONTEXT)

    def part(self, sheet: Sheet) -> Sheet:
        """What it draws of a sheet."""
        return sheet.narrowed(self.axes) if self.narrow is None else self.narrow(sheet)


def _sweep(axis: Axis) -> FigureKind:
    text = f"Mean acceptance length (full drafts) and speedup against {axis.short}"
    return FigureKind(f"by_{axis.stem}", text, partial(draw_sweep, axis=axis), (axis.name,))


HEAT_METRICS = {LENGTH: "length", "speedup": "speedup"}
"""Column of a metric -> its place in the names of files."""


def _heat_maps(across: HeatAxis, down: HeatAxis) -> list[FigureKind]:
    axes = tuple(side.axis.name for side in (across, down) if side.axis)
    what = {"length": "Mean acceptance length (full drafts)", "speedup": "Speedup"}
    return [
        FigureKind(
            f"{short}_by_{across.stem}_and_{down.stem}",
            f"{what[short]} by {across.short} and {down.short}",
            partial(draw_heat_map, across=across, down=down, name=name),
            axes,
        )
        for name, short in HEAT_METRICS.items()
    ]


NUMBER_PAIRS = [(number(first), number(second)) for first, second in combinations(NUMBER_AXES, 2)]
FIGURES: tuple[FigureKind, ...] = (
    FigureKind("methods", "Mean acceptance length (full drafts) and speedup of every method", draw_methods),
    FigureKind(
        "acceptance_by_position",
        "Acceptance by draft position, of the rounds that drafted it",
        draw_by_position,
        (TEMPERATURE.name,),
        shown_by_position,
    ),
    FigureKind(
        "length_by_distance", "Mean acceptance length (full drafts) against distance from the target", draw_tradeoff
    ),
    *(_sweep(axis) for axis in (TEMPERATURE, DEPTH, *CONTEXT_AXES)),
    *(kind for pair in [*NUMBER_PAIRS, (VERIFICATION, DRAFTING), (METHOD, DRAFTER)] for kind in _heat_maps(*pair)),
)
