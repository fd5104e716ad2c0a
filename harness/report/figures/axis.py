"""Settings that a figure can have along an axis: how they are named, ordered and written.

This module knows columns of results; it does not know what is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from harness.metrics.cell import Cell


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

    def values(self, cells: Sequence[Cell]) -> list[Any]:
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
    Axis("max_concurrency", "concurrency, requests in flight at most", "concurrency", "concurrency"),
)
NUMBER_AXES = (DEPTH, TEMPERATURE, *CONTEXT_AXES)
