"""A sheet: cells that go into the same figure, and what they have in common.

This module knows settings of cells; it does not know how anything is drawn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from harness.analysis.cell import CellResult
from harness.analysis.comparison import method_name, method_rank
from harness.analysis.estimates import Estimate
from harness.report.cell_names import (
    CONTEXT,
    context_texts,
    drafter_name,
    drafts_text,
    label_suffix,
    target_name,
    varying,
)
from harness.report.figures.style import LOOKS, Look, spare_looks


@dataclass(frozen=True)
class Sheet:
    """Cells that go into the same figure."""

    cells: tuple[CellResult, ...]
    place: str
    """The target, if they share it."""
    distances: Mapping[str, Estimate] = field(default_factory=dict)
    """Distance from the target's distribution, by cell id, of the cells that recorded it."""
    names: tuple[str, ...] = ()
    """Settings in which its parts differ, which have panels of their own."""

    @property
    def parts(self) -> list[tuple[str, Sheet]]:
        """What tells a part apart, empty where it is the only one, and the part."""
        found: dict[str, list[CellResult]] = {}
        for cell in self.cells:
            texts = context_texts(cell, [name for name in self.names if name != "target"])
            place = ", ".join([*([target_name(cell)] if "target" in self.names else []), *texts])
            found.setdefault(place, []).append(cell)
        if len(found) == 1:
            return [("", self)]
        return [(place, replace(self, cells=tuple(cells))) for place, cells in found.items()]

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
    def labels(self) -> list[str]:
        """The labels of its cells."""
        return list(dict.fromkeys(cell["labels"] for cell in self.cells if cell["labels"]))

    @property
    def main_depth(self) -> int:
        """The K with the most cells, the largest of them."""
        counts = Counter(cell["num_speculative_tokens"] for cell in self.cells)
        return max(counts, key=lambda depth: (counts[depth], depth))

    @property
    def series(self) -> dict[tuple[str, str], tuple[str, Look]]:
        """`series_key` -> (label, look), in the order of the methods."""
        keys: dict[tuple[str, str], CellResult] = {}
        for cell in sorted(self.cells, key=method_rank):
            keys.setdefault(self.series_key(cell), cell)
        samplings = Counter(verification for verification, _ in keys)
        spare, used, found = spare_looks(), set(), {}
        for key, cell in keys.items():
            method, verification = method_name(cell), key[0]
            look = LOOKS[method] if method in LOOKS and method not in used else next(spare)
            used.add(method)
            label = verification + (f", {drafts_text(cell)}" if samplings[verification] > 1 else "")
            found[key] = (label + label_suffix(cell), look)
        return found

    def series_key(self, cell: CellResult) -> tuple[str, str]:
        """What tells the series of a sheet apart: verification, and how drafts are drawn and kept.

        A list of synthetic rates that serves several K is one series, named by all of its rates.
        """
        verification = cell["verification"]
        return self._whole_lists.get(verification, verification), cell.drafts

    def of_series(self, cells: Sequence[CellResult], key: tuple[str, str]) -> list[CellResult]:
        """Those of some of its cells that belong to one series."""
        return [cell for cell in cells if self.series_key(cell) == key]

    @cached_property
    def _whole_lists(self) -> dict[str, str]:
        """Verification by the first rates of a longer list -> by that list.

        Rates that begin several lists, none of which holds the others, are left out: whose first they are is not known.
        """
        lists = {rates: cell["verification"] for cell in self.cells if (rates := _synthetic_rates(cell))}
        found = {}
        for rates, verification in lists.items():
            longer = [other for other in lists if len(other) > len(rates) and other[: len(rates)] == rates]
            longest = max(longer, key=len, default=())
            if longer and all(other == longest[: len(other)] for other in longer):
                found[verification] = lists[longest]
        return found

    def select(self, **settings: Any) -> list[CellResult]:
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

    def with_distance(self) -> Sheet:
        """A sheet of the cells that recorded their distance."""
        return replace(self, cells=tuple(cell for cell in self.cells if cell.record.cell_id in self.distances))

    def narrowed(self, axes: Collection[str]) -> Sheet:
        """The cells at the main K and the highest temperature, except along those of the two that are on an axis.

        Args:
            axes: names of settings that a figure has on its axes.
        """
        narrow = self if "num_speculative_tokens" in axes else self.part(num_speculative_tokens=self.main_depth)
        return narrow if "temperature" in axes else narrow.part(temperature=narrow.temperatures[-1])

    def beside(self, part: Sheet) -> str:
        """The K, with their trees, and the temperatures of this sheet that a part of it does not have."""
        trees: dict[int, list[str]] = {}
        for cell in sorted(self.cells, key=lambda cell: cell["num_speculative_tokens"]):
            if cell["num_speculative_tokens"] not in part.depths:
                trees.setdefault(cell["num_speculative_tokens"], []).append(cell["tree"])
        depths = [
            f"{depth} (tree {' and '.join(dict.fromkeys(shapes))})" if all(shapes) else f"{depth}"
            for depth, shapes in trees.items()
        ]
        temperatures = [f"{value:g}" for value in self.temperatures if value not in part.temperatures]
        found = {"K": depths, "T": temperatures}
        return "; ".join(f"{name} = {', '.join(values)}" for name, values in found.items() if values)

    def fixed(self, axes: Collection[str]) -> list[str]:
        """K and temperature of a narrowed sheet, without those that a figure has on its axes."""
        fixed = [] if "num_speculative_tokens" in axes else [f"K = {self.main_depth}"]
        return fixed + ([] if "temperature" in axes else [f"T = {self.temperatures[-1]:g}"])


def _synthetic_rates(cell: CellResult) -> tuple[float, ...]:
    """The rates that a cell's method was given, as many as its K; none where a profile stands for them."""
    config = cell.record.config["verification"]
    return () if config.get("profile") else tuple(config.get("rates") or ())


def sheet_of(
    cells: Sequence[CellResult], along: Collection[str] = (), distances: Mapping[str, Estimate] | None = None
) -> Sheet | None:
    """The cells with drafts, in parts by whatever a run varies but no figure has on an axis; None if there are none.

    Args:
        along: settings of CONTEXT that the figure has on an axis.
        distances: of the cells that recorded theirs, by id.
    """
    drafted = [cell for cell in cells if not cell.is_baseline and cell.estimates.sums.num_positions]
    if not drafted:
        return None
    names = [name for name in varying(drafted, CONTEXT) if name not in along]
    targets = dict.fromkeys(map(target_name, drafted))
    place = ", ".join(targets) if len(targets) == 1 else ""
    return Sheet(tuple(drafted), place, distances or {}, tuple(names))
