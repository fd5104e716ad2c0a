"""The settings that a heat map can have along its sides: numbers, and the names of drafters, drafts and methods.

This module knows where a cell lies on a side; it does not know what is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from harness.metrics.cell import Cell
from harness.report.cell_names import drafter_name
from harness.report.figures.axis import Axis
from harness.report.figures.sheet import Sheet, series_key

MIN_NUMBERS = 3
"""Values of a number on an axis, at least; two of a category are enough."""


@dataclass(frozen=True)
class HeatAxis:
    """A setting along one side of a heat map."""

    label: str
    short: str
    stem: str
    place: Callable[[Sheet, Cell], Any]
    """Where a cell lies on the axis."""
    places: Callable[[Sheet], Sequence[Any]]
    """The places that occur, in order."""
    text: Callable[[Any], str]
    least: int
    axis: Axis | None = None
    """The number behind it, if it is one."""

    def tick(self, place: Any) -> str:
        """A place at a tick, in lines that fit a cell."""
        text = self.text(place)
        if self.axis is not None:
            return text
        for opening, broken in ((" (", "("), ("(", "\n("), (", ", ",\n"), (" [", "\n["), ("; ", ";\n")):
            text = text.replace(opening, broken)
        return text


def number(axis: Axis) -> HeatAxis:
    """A setting that holds a number."""
    return HeatAxis(
        label=axis.label,
        short=axis.short,
        stem=axis.stem,
        place=lambda _, cell: cell[axis.name],
        places=lambda sheet: axis.values(sheet.cells),
        text=axis.text,
        least=MIN_NUMBERS,
        axis=axis,
    )


def _category(label: str, stem: str, place: Callable[[Sheet, Cell], str]) -> HeatAxis:
    """A setting that holds a name; its places come in the order of the series."""

    def places(sheet: Sheet) -> list[str]:
        in_order = sorted(sheet.cells, key=lambda cell: list(sheet.series).index(series_key(cell)))
        return list(dict.fromkeys(place(sheet, cell) for cell in in_order))

    return HeatAxis(label, label, stem, place, places, str, least=2)


DRAFTER = _category("drafter", "drafter", lambda _, cell: drafter_name(cell))
METHOD = _category("verification", "method", lambda sheet, cell: sheet.series[series_key(cell)][0])
DRAFTING = _category("drafts", "drafting", lambda _, cell: cell.drafts)
VERIFICATION = _category("verification", "verification", lambda _, cell: cell["verification"])
