"""Which cells differ in one setting alone, so that results can be read along it.

This module knows the settings of cells; it does not know what is read off along them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from harness.metrics.cell import CellResult

NOT_COMPARED = ("measurement", "device", "dtype")
"""Sections and settings that say nothing of which cells belong together, or repeat what another says."""


@dataclass(frozen=True)
class Series:
    """Cells with a drafter that differ in one setting alone, in the order of its values."""

    cells: tuple[CellResult, ...]

    @property
    def first(self) -> CellResult:
        return self.cells[0]


def series_along(cells: Sequence[CellResult], section: str, name: str) -> list[Series]:
    """The cells in lines along `section.name`; only lines of two cells and more.

    Args:
        cells: of any runs; those of two runs are never in one line.
        section: of the setting, such as `drafting`.
        name: of the setting, such as `num_speculative_tokens`; its values can be ordered.
    """
    found: dict[str, list[CellResult]] = {}
    for cell in cells:
        if not cell.is_baseline:
            found.setdefault(cell.key_without(*NOT_COMPARED, f"{section}.{name}"), []).append(cell)

    def value(cell: CellResult) -> Any:
        return cell.record.config[section][name]

    return [Series(tuple(sorted(line, key=value))) for line in found.values() if len(line) > 1]
