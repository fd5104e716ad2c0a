"""What is read first of a report: the answers, then acceptance by position and speed of every method.

Long sweeps keep it short: as many blocks as there is room for, the highest temperature first, and what is left out is
named. This module knows what to show; it does not know where it is written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from harness.analysis.cell import CellResult
from harness.analysis.definitions import footnotes
from harness.analysis.estimates import Estimate
from harness.report.blocks import Block, blocks, shared_settings
from harness.report.cell_names import DISTURBED, is_disturbed
from harness.report.figures.style import SAME_LAW_MARK
from harness.report.loop_notes import LOOPS, is_looping, loop_text
from harness.report.missing_values import missing_value_notes
from harness.report.table import Table
from harness.report.tables.by_position import (
    MAX_POSITIONS,
    cells_of_rows,
    differences_table,
    draws_differently,
    rows_table,
    shown_metrics,
)
from harness.report.tables.methods import DIFFERENT_DRAFTS
from harness.report.tables.summary import counting_every_round
from harness.report.verdicts import sentences

TITLE = "Which method keeps most, and what it buys"
MAX_LOOPS = 3
"""Cells with answers that loop; further ones are counted."""
MAX_ANSWERS = 6
"""Blocks that are answered; further ones are counted."""
MAX_ROWS = 32
"""Of the tables of methods together; the first block is shown in any case."""
BEHIND = "`tables/methods.md`"
FIRST_POSITION = "acceptance_rate_per_pos_1"
BRACKETS = "Brackets: {level:g} % intervals over prompts; differences are paired by prompt."
EVERY_ROUND = "All rounds: prefills and rounds without drafts are among them."
LEGEND = f"{DISTURBED}: the machine was disturbed or shared while this was timed; the warnings say how."
LOOPING = f"{LOOPS}: answers loop, which inflates this; what it is without them stands below the tables."
ONE_ROW = f"{SAME_LAW_MARK}: methods that cannot differ at temperature 0; differences of speed are noise."


class Answer(NamedTuple):
    """What a block answers, or several that keep the same."""

    title: str
    sentences: tuple[str, ...]


@dataclass(frozen=True)
class FirstScreen:
    """The answers and tables of some cells."""

    cells: tuple[CellResult, ...]
    references: Mapping[str, str | None]
    """Run -> method that the others are compared with; where there is none, the first."""
    distances: Mapping[str, Estimate] = field(default_factory=dict)
    """Cell id -> its distance from the target, of cells that recorded it (harness.report.tables.lossy)."""

    @cached_property
    def blocks(self) -> list[Block]:
        return blocks(self.cells, self.references)

    @cached_property
    def answers(self) -> list[Answer]:
        """The highest temperature first. Blocks whose sentences on acceptance are the same, as at several batch sizes,
        become one answer with a sentence on speed each."""
        found: dict[tuple[str, ...], list[tuple[Block, str]]] = {}
        for block in self.blocks[:MAX_ANSWERS]:
            *kept, speed = sentences(block, self.distances)
            found.setdefault((block.subject(self.cells), *kept), []).append((block, speed))
        return [self._answer(subject, kept, speeds) for (subject, *kept), speeds in found.items()]

    def _answer(self, subject: str, kept: Sequence[str], speeds: Sequence[tuple[Block, str]]) -> Answer:
        if len(speeds) == 1:
            ((block, speed),) = speeds
            return Answer(block.title(self.cells), (*kept, speed))
        apart = [f"{', '.join(block.context(self.cells))}: {speed}" for block, speed in speeds]
        return Answer(subject, (*kept, *apart))

    @property
    def not_answered(self) -> list[str]:
        """How many blocks have no answer here, if any."""
        num_more = len(self.blocks) - MAX_ANSWERS
        return [f"{num_more} more settings: {BEHIND}."] if num_more > 0 else []

    @cached_property
    def in_full(self) -> list[Block]:
        """The blocks with tables: every drafter and context at its highest temperature, as far as there is room."""
        found: dict[tuple[str, ...], Block] = {}
        for block in self.blocks:
            if block.main is not None:
                found.setdefault(block.place, block)
        rows_left, shown = MAX_ROWS, list[Block]()
        for block in found.values():
            if shown and len(block.shown) > rows_left:
                break
            shown.append(block)
            rows_left -= len(block.shown)
        return shown

    def tables_of(self, block: Block) -> list[Table]:
        """The methods of a block, and what they gain on the reference."""
        title = block.title(self.cells)
        gained = differences_table(block, title)
        return [rows_table(block, title), *([gained] if gained else [])]

    @cached_property
    def tables(self) -> list[Table]:
        """Those of all blocks in full; what the columns mean stands below the last one."""
        tables = [table for block in self.in_full for table in self.tables_of(block)]
        if tables:
            names = list(dict.fromkeys(name for block in self.in_full for name in shown_metrics(block.shown)))
            tables[-1] = replace(tables[-1], notes=tuple(footnotes(names)))
        return tables

    @property
    def shared(self) -> str:
        """The settings that all cells have in common."""
        return shared_settings(self.cells)

    @property
    def reading(self) -> str:
        """What brackets and marks mean, and which of two lengths is which, before the first of them."""
        cells = [cell for cell in self.cells if not cell.record.has_failed]
        marks = [LEGEND] if any(map(is_disturbed, cells)) else []
        marks += [LOOPING] if any(map(is_looping, cells)) else []
        marks += [EVERY_ROUND] if counting_every_round(cells) or any(cell.drafts_rarely for cell in cells) else []
        return " ".join([BRACKETS.format(level=100 * self.cells[0].estimates.confidence), *marks])

    @cached_property
    def below(self) -> list[str]:
        """Which rows are one, what loops, why values are missing, and what else was measured."""
        shown = [cell for block in self.in_full for cell in block.shown]
        cells = [cell for cell in shown if not cell.record.has_failed]
        names = [name for block in self.in_full for name in shown_metrics(block.shown) if "_per_pos_" not in name]
        lines = [ONE_ROW] if any(len(row) > 1 for block in self.in_full for row in cells_of_rows(block)) else []
        lines += self._loops
        lines += missing_value_notes(cells, list(dict.fromkeys([FIRST_POSITION, *names])))
        lines += [DIFFERENT_DRAFTS] if any(draws_differently(block) for block in self.in_full) else []
        left_out = [block for block in self.blocks if block not in self.in_full and not block.first.is_baseline]
        num_cells = sum(len(block.cells) for block in left_out)
        num_cells += sum(len(block.cells) - len(block.shown) for block in self.in_full)
        lines += [f"{num_cells} more cells, of other temperatures, K or settings: {BEHIND}."] if num_cells else []
        last = max((cell.estimates.sums.num_positions for cell in cells), default=0)
        lines += [f"Positions {MAX_POSITIONS + 1} to {last}: {BEHIND}."] if last > MAX_POSITIONS else []
        return lines

    @property
    def _loops(self) -> list[str]:
        """Of the cells in the tables some of whose answers loop, acceptance without them."""
        found = [(block, cell) for block in self.in_full for cell in block.shown if is_looping(cell)]
        lines = [f"{LOOPS} {block.label(cell)}: {loop_text(cell)}." for block, cell in found[:MAX_LOOPS]]
        num_more = len(found) - len(lines)
        return [*lines, *([f"{LOOPS} {num_more} more cells: see the warnings."] if num_more else [])]
