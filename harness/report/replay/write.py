"""Writes the replay of a run: tables/replay.md, .tex, .csv and replay_differences.csv, where it was
recorded replay_several_drafts.csv, and figures/replay.png.

This module knows files; what the numbers mean is elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from harness.analysis.cell import CellResult
from harness.analysis.recorded_terms import Recorded
from harness.analysis.replay.frames import differences_frame, replay_frame
from harness.analysis.replay.replayed import Replayed, replay
from harness.analysis.results import Results, read_results
from harness.records import InconsistentRecordError
from harness.report.cell_names import column_name, drafter_name
from harness.report.files import write_files
from harness.report.latex import to_latex
from harness.report.missing_values import masked_text
from harness.report.replay.several_drafts import several_frame, several_table
from harness.report.replay.tables import differences_table, replay_table
from harness.report.table import Table
from harness.report.warnings import left_out
from kernels.verification import Verification


@dataclass(frozen=True)
class Replay:
    """A run's cells under every method."""

    replayed: tuple[Replayed, ...]
    without_terms: tuple[CellResult, ...]
    """Cells with drafts that recorded no terms."""
    masked: tuple[Recorded, ...]
    """Cells with drafts that were verified under a grammar's masks, for which terms are not defined."""
    unreadable: tuple[str, ...]
    """What is wrong with each file that could not be used, and each cell that contradicts its terms."""
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
        """What a reader must know: the drafts and cells that are missing."""
        return [
            *left_out(self.unreadable),
            *(f"no terms recorded: {_name(cell)}" for cell in self.without_terms),
            *(f"{masked_text(item)}: {_name(item.cell)}" for item in self.masked),
        ]


def _name(cell: CellResult) -> str:
    return f"{drafter_name(cell)} {column_name(cell)}"


def read_replay(path: Path, rules: Sequence[Verification]) -> Replay:
    """Compute methods on the drafts that the cells at a path recorded.

    Args:
        path: a run folder, a cells folder, one cell file, or a folder of run folders.
        rules: the methods; each cell's own is added.

    Raises:
        ValueError: no cell has terms that can be used and hold a draft; the message says why.
    """
    results = read_results(path)
    replayed, unreadable = list[Replayed](), list[str](results.unreadable)
    for item in _recorded(path, results):
        try:
            replayed.append(replay(item, rules))
        except InconsistentRecordError as error:
            unreadable.append(str(error))
    if not replayed:
        raise ValueError(unreadable[0])
    recording = results.recording
    with_terms = {id(item.cell) for item in recording.cells} | {id(cell) for cell, _ in recording.unreadable}
    without_terms = tuple(cell for cell in results.cells if not cell.is_baseline and id(cell) not in with_terms)
    masked = tuple(item for item in recording.cells if item.num_masked_drafts)
    frames = replay_frame(replayed), differences_frame(replayed, results.cells), several_frame(replayed)
    return Replay(tuple(replayed), without_terms, masked, tuple(unreadable), *frames)


def _recorded(path: Path, results: Results) -> list[Recorded]:
    """The cells with terms that hold a draft; raises ValueError where there is none, and says why."""
    recording = results.recording
    kept = [item for item in recording.cells if len(item.terms.request)]
    if kept:
        return kept
    if recording.unreadable:
        raise ValueError(recording.unreadable[0][1])
    if not recording.cells:
        raise ValueError(
            f"{path}: expected cells with recorded terms, found none; run with measurement.round_terms=true"
        )
    masked = [item for item in recording.cells if item.num_masked_drafts]
    if masked:
        raise ValueError(f"{path}: expected drafts with terms, found none; {masked_text(masked[0])}")
    raise ValueError(f"{path}: expected drafts that count in full, found none; raise decoding.max_new_tokens")


def write_replay(found: Replay, folder: Path, formats: Sequence[str] = ("png",)) -> list[Path]:
    """Write tables and figure to a folder; returns the paths, the page of tables first."""
    from harness.report.replay.figure import write_figure

    texts = {
        "tables/replay.md": found.markdown,
        "tables/replay.tex": "\n".join(to_latex(table) for table in found.tables),
        "tables/replay.csv": found.frame.to_csv(index=False, lineterminator="\n"),
        "tables/replay_differences.csv": found.differences.to_csv(index=False, lineterminator="\n"),
    }
    if len(found.several):
        texts["tables/replay_several_drafts.csv"] = found.several.to_csv(index=False, lineterminator="\n")
    written = write_files(folder, texts)
    return [*written, *write_figure(found.replayed, found.differences, folder / "figures", formats)]
