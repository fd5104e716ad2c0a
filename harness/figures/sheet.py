"""A sheet: cells that go into the same figure, and what they have in common.

This module knows settings of cells; it does not know how anything is drawn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from harness.comparison import method_name, method_rank
from harness.figures.style import LOOKS, SPARE_LOOKS, Look
from harness.metrics import Cell
from harness.tables import SURROUNDINGS, drafter_name, label_suffix, target_name, varying


@dataclass(frozen=True)
class Sheet:
    """Cells that go into the same figure."""

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
    def depths(self) -> list[int]:
        return sorted({cell["num_speculative_tokens"] for cell in self.cells})

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

    def part(self, **settings: Any) -> Sheet:
        """A sheet of the cells with these settings."""
        return replace(self, cells=tuple(self.select(**settings)))

    def at_main_depth(self) -> Sheet:
        return self.part(num_speculative_tokens=self.main_depth)

    def at_warmest(self) -> Sheet:
        return self.part(temperature=self.temperatures[-1])


def of_series(cells: Sequence[Cell], key: tuple[str, str]) -> list[Cell]:
    """The cells of one series of a sheet."""
    return [cell for cell in cells if (cell["verification"], cell["draft_sampling"]) == key]


def sheets(cells: Sequence[Cell], along: Collection[str] = ()) -> list[Sheet]:
    """The cells with drafts, a sheet for each target and whatever else a run varies but no figure has on an axis.

    Args:
        along: settings of SURROUNDINGS that the figure has on an axis.
    """
    drafted = [cell for cell in cells if not cell.is_baseline and cell.estimates.sums.num_positions]
    names = [name for name in varying(drafted, SURROUNDINGS) if name != "target" and name not in along]
    found: dict[str, list[Cell]] = {}
    for cell in drafted:
        place = ", ".join([target_name(cell), *(f"{name} = {cell[name]}" for name in names)])
        found.setdefault(place, []).append(cell)
    return [Sheet(tuple(items), place) for place, items in found.items()]
