"""Cells in blocks: one drafter at one temperature in one context, with the baseline that they share.

This module knows settings of cells; it does not know what is shown of them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isnan

from harness.analysis.cell import CellResult
from harness.analysis.comparison import Group, groups, method_name, same_law
from harness.analysis.failed_cells import AXES
from harness.analysis.ranking import THROUGHPUT
from harness.report.cell_names import (
    CONTEXT,
    context_texts,
    depth_text,
    drafter_name,
    drafts_text,
    in_flight,
    summary_order,
    target_name,
    varying,
)
from kernels.methods import Guarantee

MAX_CELLS = 12
"""A block with more shows the methods of one K and shape, or one method of each."""
FEW_METHODS = 2
"""Of each K and shape: so few are compared in a sentence, and K and shapes in rows."""
NOT_TOLD = "auto"
"""The device and dtype of a server that does not tell them, as settings have it."""
LENGTHS = ("full_draft_length", "mean_acceptance_length")
"""The acceptance length, and what stands for it where rounds are not known."""


@dataclass(frozen=True)
class Block:
    """The cells with one drafter at one temperature in one context; or a baseline that no drafter has."""

    cells: tuple[CellResult, ...]
    """By K and method, failed ones too."""
    baseline: CellResult | None
    """Also one that failed."""
    reference: str | None = None
    """The method that the others are compared with; None is the first of a group."""

    @property
    def first(self) -> CellResult:
        return self.cells[0]

    @property
    def temperature(self) -> float:
        return self.first["temperature"]

    @property
    def place(self) -> tuple[str, str, str]:
        """The same of blocks that differ in their temperature alone."""
        return (self.first.key_without(*AXES, "decoding.temperature"), *_drafter(self.first))

    @cached_property
    def groups(self) -> list[Group]:
        """Its cells that have not failed, by K and shape."""
        return groups(self.cells)

    @cached_property
    def main(self) -> Group | None:
        """The K and shape with the most methods; of several the one with the fastest cell. None if all cells failed."""
        return max(self.groups, key=lambda group: (len(group.cells), _fastest(group)), default=None)

    @cached_property
    def shown(self) -> tuple[CellResult, ...]:
        """All cells where they are few, else the methods of the main K and shape, or the best one of each."""
        if len(self.cells) <= MAX_CELLS or self.main is None:
            return self.cells[:MAX_CELLS]
        if self.shows_best_of_each:
            return tuple(map(_longest, self.groups[:MAX_CELLS]))
        return self.main.cells[:MAX_CELLS]

    @property
    def shows_best_of_each(self) -> bool:
        """Whether its K and shapes are more than it can show, with few methods each."""
        is_long = len(self.cells) > MAX_CELLS and self.main is not None
        return is_long and len(self.groups) > 1 and max(len(group.cells) for group in self.groups) <= FEW_METHODS

    @cached_property
    def is_one_law(self) -> bool:
        """Whether it compares several methods, none of which can differ from the others."""
        several = [group.cells for group in self.groups if len(group.cells) > 1]
        return bool(several) and all(same_law(cells[0], cell) for cells in several for cell in cells[1:])

    def reference_of(self, group: Group) -> CellResult:
        """The cell that the others of a group are compared with."""
        return next((cell for cell in group.cells if method_name(cell) == self.reference), group.first)

    def title(self, cells: Sequence[CellResult]) -> str:
        """What tells the block from the other cells; its K where it has one."""
        return " · ".join([self.subject(cells), *self.context(cells)])

    def subject(self, cells: Sequence[CellResult]) -> str:
        """Its part of the title that names models, K and temperature."""
        first, targets = self.first, varying(cells, ["target", "target_weights"])
        parts = [target_name(first)] if targets else []
        parts.append("no drafts" if first.is_baseline else drafter_name(first))
        if len({depth_text(cell) for cell in self.cells}) == 1 and not first.is_baseline:
            parts.append(depth_text(first))
        return " · ".join([*parts, f"T = {first['temperature']:g}"])

    def context(self, cells: Sequence[CellResult]) -> list[str]:
        """The other settings that tell it apart, the same of all its cells."""
        own = varying(self.cells, CONTEXT)
        names = [name for name in varying(cells, CONTEXT) if name not in ("target", *own)]
        return context_texts(self.first, names)

    @property
    def has_depths(self) -> bool:
        """Whether it has several K or shapes."""
        return len({depth_text(group.first) for group in self.groups}) > 1

    @cached_property
    def names(self) -> Mapping[str, str]:
        """Cell id -> its method, with what else tells it from the other cells of its K and shape; never the same.

        Parameters that all cells of a method have alike are left to `shared_parameters`.
        """
        count = Counter((depth_text(cell), cell["verification"]) for cell in self.cells)
        others = varying(self.cells, ["other_settings"])
        names: dict[str, str] = {}
        used: Counter[tuple[str, str]] = Counter()
        for cell in self.cells:
            parts = [self._method(cell)]
            if count[depth_text(cell), cell["verification"]] > 1:
                parts.append(drafts_text(cell))
            parts += [cell[name] for name in others if cell[name]]
            name = ", ".join(parts) + own_labels(cell, self.shared_labels)
            used[depth_text(cell), name] += 1
            number = used[depth_text(cell), name]
            names[cell.record.cell_id] = f"{name} ({number})" if number > 1 else name
        return names

    @cached_property
    def shared_parameters(self) -> Mapping[str, tuple[str, ...]]:
        """Method -> its parameters that all its cells have alike, which stand once above the rows."""
        found: dict[str, tuple[str, ...]] = {}
        for cell in self.cells:
            own, method = _parameters(cell), method_name(cell)
            found[method] = tuple(text for text in found.get(method, own) if text in own)
        return found

    def _method(self, cell: CellResult) -> str:
        """A method with those of its parameters in which its cells differ."""
        shared = self.shared_parameters[method_name(cell)]
        own = [text for text in _parameters(cell) if text not in shared]
        return method_name(cell) + (f"({', '.join(own)})" if own else "")

    def label(self, cell: CellResult) -> str:
        """Its name, with its K and shape where the block has several."""
        name = self.names[cell.record.cell_id]
        return name if len(set(map(depth_text, self.cells))) == 1 else f"{name} at {depth_text(cell)}"

    @property
    def shared_labels(self) -> list[str]:
        """Labels that all of its cells have, which stand once above them."""
        return _shared_labels(self.cells)


def blocks(cells: Sequence[CellResult], references: Mapping[str, str | None] | None = None) -> list[Block]:
    """The cells in blocks, the highest temperature first; baselines apart, if alone.

    Args:
        cells: of any runs.
        references: run -> method that the others are compared with; where there is none, the first.
    """
    found: dict[tuple[str, str, str], list[CellResult]] = {}
    baselines: dict[str, CellResult] = {}
    for cell in sorted(cells, key=summary_order):
        if cell.is_baseline:
            baselines.setdefault(cell.context_key, cell)
        else:
            found.setdefault((cell.context_key, *_drafter(cell)), []).append(cell)
    with_drafter = {key for key, *_ in found}
    alone = [Block((cell,), cell) for key, cell in baselines.items() if key not in with_drafter]
    drafted = [
        Block(tuple(items), items[0].baseline or baselines.get(key[0]), (references or {}).get(items[0]["run"]))
        for key, items in found.items()
    ]
    return sorted([*drafted, *alone], key=lambda block: -block.temperature)


def shared_settings(cells: Sequence[CellResult]) -> str:
    """What all cells have in common, and a title therefore does not say."""
    alike = {name for name in CONTEXT if name not in varying(cells, CONTEXT)}
    first = next((cell for cell in cells if not cell.record.has_failed), cells[0])
    texts = {
        "target": f"target {target_name(first)}",
        "workload": f"{first.estimates.num_prompts} prompts ({first['workload']})",
        "max_concurrency": f"at most {in_flight(first['max_concurrency'])}",
        "max_new_tokens": f"at most {first['max_new_tokens']} new tokens",
        "device": ", ".join(first[name] for name in ("device", "dtype") if first[name] != NOT_TOLD),
    }
    return " · ".join(text for name, text in texts.items() if text and name in alike)


def _drafter(cell: CellResult) -> tuple[str, str]:
    return drafter_name(cell), cell["drafter_path"]


def _parameters(cell: CellResult) -> list[str]:
    """The parameters of its method, each as name=value."""
    texts = cell["verification"].removeprefix(method_name(cell)).removeprefix("(").removesuffix(")")
    return re.split(r", (?=\w+=)", texts) if texts else []


def _labels(cell: CellResult) -> list[str]:
    """But for what the guarantee says already."""
    return [label for label in cell["labels"].split("; ") if label and label != cell["guarantee"]]


def _shared_labels(cells: Sequence[CellResult]) -> list[str]:
    if len(cells) < 2:
        return []
    return [label for label in _labels(cells[0]) if all(label in _labels(cell) for cell in cells)]


def own_labels(cell: CellResult, shared: Sequence[str]) -> str:
    """The labels that not all cells of a block have, in brackets, or nothing."""
    own = [label for label in _labels(cell) if label not in shared]
    return f" [{'; '.join(own)}]" if own else ""


def _longest(group: Group) -> CellResult:
    """The cell that accepts most, of the lossless ones if there are any."""

    def rank(cell: CellResult) -> tuple[bool, float]:
        lengths = [value for name in LENGTHS if not isnan(value := cell.estimate(name).value)]
        return cell["guarantee"] == Guarantee.lossless.value, lengths[0] if lengths else 0.0

    return max(group.cells, key=rank)


def _fastest(group: Group) -> float:
    """Its highest throughput that was observed and is possible."""
    known = [cell for cell in group.cells if not cell.is_impossible and not cell.has_failed_requests]
    values = [cell.estimate(THROUGHPUT).value for cell in known]
    return max((value for value in values if not isnan(value)), default=0.0)
