"""Settings that a figure can have along an axis: how they are named, ordered and written.

A sweep has a number along its axis; a heat map has numbers, or names of drafters, drafts and methods, along its sides.
This module knows columns of results and where a cell lies on a side; it does not know what is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from harness.analysis.cell import CellResult
from harness.report.cell_names import drafter_name
from harness.report.figures.sheet import Sheet


@dataclass(frozen=True)
class Axis:
    """A setting that holds a number."""

    name: str
    """Column of the results."""
    label: str
    short: str
    """In titles."""
    stem: str
    """In names of files."""
    is_context: bool = True
    """Cells that differ in it otherwise have panels of their own."""
    off: float | None = None
    """The value that turns it off; it stands at the end where nothing is cut."""
    off_is_last: bool = False

    def values(self, cells: Sequence[CellResult]) -> list[Any]:
        """The values that occur, in the order of the axis."""
        return sorted({cell[self.name] for cell in cells}, key=self._rank)

    def text(self, value: Any) -> str:
        """A value at a tick."""
        return "off" if value == self.off else f"{value:g}"

    def _rank(self, value: Any) -> float:
        return inf if self.off_is_last and value == self.off else value


DEPTH = Axis("num_speculative_tokens", "K, draft tokens per round", "K", "depth", is_context=False)
TEMPERATURE = Axis("temperature", "temperature", "temperature", "temperature", is_context=False)
CONTEXT_AXES = (
    Axis("top_k", "top-k", "top-k", "top_k", off=0, off_is_last=True),
    Axis("top_p", "top-p", "top-p", "top_p", off=1.0),
    Axis("min_p", "min-p", "min-p", "min_p", off=0.0),
    Axis("max_concurrency", "requests in flight, at most", "requests in flight", "concurrency"),
)
NUMBER_AXES = (DEPTH, TEMPERATURE, *CONTEXT_AXES)


MIN_NUMBERS = 3
"""Values of a number on an axis, at least; two of a category are enough."""


@dataclass(frozen=True)
class HeatAxis:
    """A setting along one side of a heat map."""

    label: str
    short: str
    stem: str
    place: Callable[[Sheet, CellResult], Any]
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


def _category(label: str, stem: str, place: Callable[[Sheet, CellResult], str]) -> HeatAxis:
    """A setting that holds a name; its places come in the order of the series."""

    def places(sheet: Sheet) -> list[str]:
        in_order = sorted(sheet.cells, key=lambda cell: list(sheet.series).index(sheet.series_key(cell)))
        return list(dict.fromkeys(place(sheet, cell) for cell in in_order))

    return HeatAxis(label, label, stem, place, places, str, least=2)


DRAFTER = _category("drafter", "drafter", lambda _, cell: drafter_name(cell))
METHOD = _category("verification", "method", lambda sheet, cell: sheet.series[sheet.series_key(cell)][0])
DRAFTING = _category("drafts", "drafting", lambda _, cell: cell.drafts)
VERIFICATION = _category("verification", "verification", lambda _, cell: cell["verification"])
