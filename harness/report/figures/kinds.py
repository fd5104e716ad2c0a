"""The figures of a report, in order. A new one: a module with its `FigureKind`, and its name here.

A kind draws one sheet (`harness.report.figures.sheet`) and returns None where it has nothing to show. This module
imports no drawing before the kinds are asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from harness.config.imported import ImportPath
from harness.report.cell_names import CONTEXT
from harness.report.figures.sheet import Sheet

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FIGURES = {
    "methods": "harness.report.figures.methods:METHODS",
    "acceptance_by_position": "harness.report.figures.by_position:BY_POSITION",
    "length_by_distance": "harness.report.figures.tradeoff:BY_DISTANCE",
    "sweeps": "harness.report.figures.sweep:SWEEPS",
    "heat_maps": "harness.report.figures.heat_map:HEAT_MAPS",
}
"""Name -> PACKAGE.MODULE:OBJECT of a `FigureKind` of that name, or of several that one module draws."""


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


@cache
def figure_kinds() -> tuple[FigureKind, ...]:
    """Every kind of figure, in order."""
    kinds: list[FigureKind] = []
    for name, path in FIGURES.items():
        found = ImportPath(path).load("figures")
        several = (found,) if isinstance(found, FigureKind) else found
        assert several is found or found.name == name, f"{path} is called {found.name}, not {name}"
        kinds += several
    return tuple(kinds)
