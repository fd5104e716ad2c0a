"""Writes the replay of a run: tables/replay.md, .tex, .csv and replay_differences.csv, where it was
recorded replay_several_drafts.csv, and figures/replay.png.

This module knows files; what the numbers mean is elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from harness.metrics.cell import CellResult
from harness.metrics.recorded_terms import read_recording
from harness.records.files import write_atomically
from harness.replay.frames import differences_frame, replay_frame
from harness.replay.replayed import Replayed, replay
from harness.replay.several_drafts import several_frame, several_table
from harness.replay.tables import differences_table, replay_table
from harness.report.cell_names import column_name, drafter_name
from harness.report.latex import to_latex
from harness.report.table import Table
from kernels.verification import Verification


@dataclass(frozen=True)
class Replay:
    """A run's cells under every method."""

    replayed: tuple[Replayed, ...]
    without_terms: tuple[CellResult, ...]
    """Cells with drafts that could not be replayed."""
    frame: pd.DataFrame
    differences: pd.DataFrame
    several: pd.DataFrame
    """Empty where no cell recorded it."""

    @property
    def tables(self) -> tuple[Table, ...]:
        """The methods, their differences, and what several drafts would be worth where that was recorded."""
        several = [several_table(self.replayed, self.several)] if len(self.several) else []
        return replay_table(self.replayed, self.frame), differences_table(self.replayed, self.differences), *several

    @property
    def markdown(self) -> str:
        """Both tables, and below them, once, the definitions of both."""
        notes = dict.fromkeys(note for table in self.tables for note in table.notes)
        tables = (replace(table, notes=()).to_markdown() for table in self.tables)
        return "\n".join([*tables, *(f"- {note}" for note in notes), ""])

    @property
    def warnings(self) -> list[str]:
        """What a reader must know: the cells that are missing."""
        return [f"no terms recorded: {drafter_name(cell)} {column_name(cell)}" for cell in self.without_terms]


def read_replay(path: Path, rules: Sequence[Verification]) -> Replay:
    """Compute methods on the drafts that the cells at a path recorded.

    Args:
        path: a run folder, a cells folder, one cell file, or a folder of run folders.
        rules: the methods; each cell's own is added.

    Raises:
        ValueError: nothing recorded, or files that contradict each other; the message says which.
    """
    cells, recorded = read_recording(path)
    replayed = tuple(replay(item, rules) for item in recorded)
    found = {id(item.cell) for item in recorded}
    without_terms = tuple(cell for cell in cells if not cell.is_baseline and id(cell) not in found)
    frames = replay_frame(replayed), differences_frame(replayed, cells), several_frame(replayed)
    return Replay(replayed, without_terms, *frames)


def write_replay(found: Replay, folder: Path, formats: Sequence[str] = ("png",)) -> list[Path]:
    """Write tables and figure to a folder; returns the paths, the page of tables first."""
    from harness.replay.figure import write_figure

    texts = {
        "tables/replay.md": found.markdown,
        "tables/replay.tex": "\n".join(to_latex(table) for table in found.tables),
        "tables/replay.csv": found.frame.to_csv(index=False, lineterminator="\n"),
        "tables/replay_differences.csv": found.differences.to_csv(index=False, lineterminator="\n"),
    }
    if len(found.several):
        texts["tables/replay_several_drafts.csv"] = found.several.to_csv(index=False, lineterminator="\n")
    for name, text in texts.items():
        write_atomically(folder / name, text.encode())
    return [
        *(folder / name for name in texts),
        *write_figure(found.replayed, found.differences, folder / "figures", formats),
    ]
