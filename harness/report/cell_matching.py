"""Which cells of two runs are compared, and why the others are not.

Cells match when they agree in every setting that varies within either run; a setting that each run holds at one value
may differ. Runs on different prompts do not match at all. Baselines are matched with baselines.
This module knows settings; it does not know what is compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from harness.analysis.cell import CellResult
from harness.analysis.flat_settings import flattened, listed
from harness.config.identity import key_without
from harness.config.usage import used_settings
from harness.report.cell_names import summary_order

PROMPT_SETTINGS = ("workload.dataset", "workload.subset", "workload.split", "workload.column", "workload.files")
"""With the file's name: what must agree before prompts of the same id are the same prompts."""
RULE = (
    "Cells are paired where they agree in every setting that varies within a run; a setting that each run holds at one "
    "value may differ. Run one of the two again with values that the other has, or with one value of each such setting."
)
OTHER_PROMPTS = "other prompts"
CONSEQUENCES = ("guarantee", "draft_sampling")
"""Parts of a record's settings that follow from others, which are listed in their place."""


class Pair(NamedTuple):
    """A cell of the first run and its partner in the second."""

    first: CellResult
    second: CellResult

    @property
    def num_common_prompts(self) -> int:
        return len(set(self.first.estimates.sums.prompt_ids) & set(self.second.estimates.sums.prompt_ids))


@dataclass(frozen=True)
class Side:
    """One of the two runs."""

    name: str
    cells: tuple[CellResult, ...]

    def part(self, *, is_baseline: bool) -> Side:
        return Side(self.name, tuple(cell for cell in self.cells if cell.is_baseline is is_baseline))

    @cached_property
    def settings(self) -> list[dict[str, str]]:
        """Dotted name -> text of the settings that each cell uses."""
        return [_flat(cell) for cell in self.cells]

    def values(self, setting: str) -> list[str]:
        """The values of a setting in its cells; empty for a cell that does not use it."""
        return list(dict.fromkeys(flat.get(setting, "") for flat in self.settings))

    @property
    def prompts(self) -> set[tuple[str, ...]]:
        """Where its prompts come from."""
        return {
            (str(cell["workload"]), *(flat.get(name, "") for name in PROMPT_SETTINGS))
            for cell, flat in zip(self.cells, self.settings, strict=True)
        }


def matching_cells(first: Side, second: Side) -> list[Pair]:
    """The pairs of cells that match, in the order of a summary."""
    if first.prompts != second.prompts:
        return []
    pairs = []
    for is_baseline in (True, False):
        sides = [side.part(is_baseline=is_baseline) for side in (first, second)]
        constant = _settings(*sides) - set(_varying(*sides))
        left, right = ({key_without(_flat(cell), *constant): cell for cell in side.cells} for side in sides)
        pairs += [Pair(cell, right[key]) for key, cell in left.items() if key in right]
    return sorted(pairs, key=lambda pair: summary_order(pair.first))


def why_unmatched(cell: CellResult, own: Side, other: Side) -> str:
    """Why a cell of one run has no partner in the other, in words."""
    if own.prompts != other.prompts:
        return OTHER_PROMPTS
    own, other = (side.part(is_baseline=cell.is_baseline) for side in (own, other))
    if not other.cells:
        return f"{other.name} has no {_kind(cell.is_baseline)}"
    names = _named(own, other)
    values = {name: _flat(cell).get(name, "") for name in names}
    foreign = [name for name, value in values.items() if value not in other.values(name)]
    if foreign:
        return "; ".join(f"{name} is {_shown([values[name]])}, there {_shown(other.values(name))}" for name in foreign)
    return f"no cell there with this combination of {', '.join(names)}"


def matching_warnings(first: Side, second: Side, pairs: Sequence[Pair]) -> list[str]:
    """What must be said of a comparison that is empty, or partly so: why, and what to do."""
    if first.prompts != second.prompts:
        return [_prompts_warning(first, second)]
    warnings = []
    drafted = [side.part(is_baseline=False) for side in (first, second)]
    if not any(not pair.first.is_baseline for pair in pairs) and any(side.cells for side in drafted):
        what = "Only baselines are paired" if pairs else "No cells are paired"
        warnings.append(f"{what}: {_why_none(*drafted)}. {RULE}")
    elif not pairs:
        baselines = [side.part(is_baseline=True) for side in (first, second)]
        warnings.append(f"No cells are paired: {_why_none(*baselines)}. {RULE}")
    num_apart = sum(not pair.num_common_prompts for pair in pairs)
    return [*warnings, _apart_warning(first, second, num_apart, len(pairs))] if num_apart else warnings


def _prompts_warning(first: Side, second: Side) -> str:
    sources = [
        ", ".join(sorted(" ".join(part for part in item if part not in ("", "–")) for item in side.prompts))
        for side in (first, second)
    ]
    return (
        f"The runs are on different prompts ({first.name}: {sources[0]}; {second.name}: {sources[1]}), so no cells are "
        "paired. Run one of the two again with the workload of the other."
    )


def _why_none(first: Side, second: Side) -> str:
    """Why no cell has a partner, of runs of which at least one has cells, all with a drafter or all without."""
    is_baseline = all(cell.is_baseline for side in (first, second) for cell in side.cells)
    for side in (first, second):
        if not side.cells:
            return f"{side.name} has no {_kind(is_baseline)}"
    names = _named(first, second)
    apart = [name for name in names if not set(first.values(name)) & set(second.values(name))]
    if apart:
        return "; ".join(_both(name, first, second) for name in apart)
    return f"no combination of {', '.join(names)} is in both runs"


def _apart_warning(first: Side, second: Side, num_apart: int, num_pairs: int) -> str:
    """Of pairs without a common prompt: what chose other prompts."""
    chosen_by = sorted(name for name in _settings(first, second) if name == "seed" or name.startswith("workload."))
    differ = [_both(name, first, second) for name in chosen_by if first.values(name) != second.values(name)]
    why = f" ({'; '.join(differ)})" if differ else ""
    return (
        f"{num_apart} of {num_pairs} pairs have no prompt in common{why}, so there is nothing to pair by prompt and "
        "their differences are empty. Run one of the two again with the seed and workload of the other, or both on all "
        "prompts (workload.num_prompts=null)."
    )


def _both(name: str, first: Side, second: Side) -> str:
    values = [_shown(side.values(name)) for side in (first, second)]
    return f"{name} is {values[0]} in {first.name} and {values[1]} in {second.name}"


def _shown(values: Sequence[str]) -> str:
    return listed([value or "not used" for value in values])


def _kind(is_baseline: bool) -> str:
    return "baseline" if is_baseline else "cells with a drafter"


def _flat(cell: CellResult) -> dict[str, str]:
    return flattened(used_settings(cell.record.config))


def _settings(*sides: Side) -> set[str]:
    """Every setting that some cell uses, by name."""
    return {name for side in sides for flat in side.settings for name in flat}


def _varying(*sides: Side) -> list[str]:
    """The settings that do not have one value in all cells of each run, by name."""
    return sorted(name for name in _settings(*sides) if any(len(side.values(name)) > 1 for side in sides))


def _named(*sides: Side) -> list[str]:
    """Those of the varying settings that a reader would set: no consequence of them."""
    return [name for name in _varying(*sides) if name not in CONSEQUENCES]
