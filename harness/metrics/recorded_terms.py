"""Finds the cells of runs that recorded the terms of their drafts.

This module knows where records and terms lie; it does not know what follows from them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.metrics.cell import CellResult, analyse
from harness.records import InconsistentRecordError
from harness.records.acceptance_terms import RoundTerms, check_terms_of, read_terms, terms_path
from harness.records.finished import WrittenFiles
from harness.records.runs import CELLS, Run, read_runs


@dataclass(frozen=True)
class Recorded:
    """A cell and the terms of its full drafts."""

    cell: CellResult
    terms: RoundTerms


def read_recording(path: Path) -> tuple[list[CellResult], tuple[Recorded, ...]]:
    """Read the cells at a path (see `harness.records.runs.read_runs`) and their terms.

    Returns:
        All cells, so that sampled estimates of others can be set beside a replay, and those that have terms.

    Raises:
        ValueError: no cell has terms that hold a draft, or a file is inconsistent, not as the run wrote it, or
            does not belong to its record.
    """
    runs = read_runs(path)
    cells = analyse(runs)
    recorded = recorded_cells(runs, cells)
    if not recorded:
        raise ValueError(
            f"{path}: expected cells with recorded terms, found none; run with measurement.round_terms=true"
        )
    kept = tuple(item for item in recorded if len(item.terms.request))
    if not kept:
        raise ValueError(f"{path}: expected drafts that count in full, found none; raise decoding.max_new_tokens")
    return cells, kept


def recorded_cells(runs: Sequence[Run], cells: Sequence[CellResult]) -> list[Recorded]:
    """Those of the cells of some runs that have terms; raises ValueError for terms that are not of their record."""
    folders = {run.name: _cells_folder(run) for run in runs}
    written = {name: WrittenFiles(folder) for name, folder in folders.items()}
    found = ((cell, _terms_of(cell, folders[cell["run"]], written[cell["run"]])) for cell in cells)
    return [Recorded(cell, terms) for cell, terms in found if terms is not None]


def _cells_folder(run: Run) -> Path:
    inside = run.folder / CELLS
    return inside if inside.is_dir() else run.folder


def _terms_of(cell: CellResult, folder: Path, written: WrittenFiles) -> RoundTerms | None:
    path = terms_path(folder, cell.record.cell_id)
    if cell.is_baseline or not path.is_file():
        return None
    terms = read_terms(path)
    try:
        check_terms_of(terms, cell.record)
    except InconsistentRecordError as error:
        raise ValueError(f"{path}: {error}") from error
    written.check(path)
    return terms
