"""Finds the cells of runs that recorded the terms of their drafts.

This module knows where records and terms lie; it does not know what follows from them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.analysis.cell import CellResult
from harness.records import InconsistentRecordError
from harness.records.acceptance_terms import RoundTerms, check_terms_of, num_masked_drafts, read_terms, terms_path
from harness.records.finished import WrittenFiles
from harness.records.runs import Run


@dataclass(frozen=True)
class Recorded:
    """A cell and the terms of its drafts."""

    cell: CellResult
    terms: RoundTerms

    @property
    def num_masked_drafts(self) -> int:
        """Drafts that count in full and have no terms, because they were verified under a grammar's masks."""
        return num_masked_drafts(self.cell.record)


@dataclass(frozen=True)
class Recording:
    """What some runs recorded of their drafts."""

    cells: tuple[Recorded, ...] = ()
    """Those that have terms."""
    unreadable: tuple[tuple[CellResult, str], ...] = ()
    """Cells whose file of terms cannot be used, and what is wrong with it; begins with its path."""


def recording_of(runs: Sequence[Run], cells: Sequence[CellResult]) -> Recording:
    """Read the terms of the cells of some runs; terms that are not of their record are named, not used."""
    folders = {run.name: run.cells_folder for run in runs}
    written = {name: WrittenFiles(folder) for name, folder in folders.items()}
    found, unreadable = list[Recorded](), list[tuple[CellResult, str]]()
    for cell in cells:
        if cell["run"] not in folders:
            # made in memory: there is no file of it
            continue
        path = terms_path(folders[cell["run"]], cell.record.cell_id)
        if cell.is_baseline or not (path.exists() or path.is_symlink()):
            continue
        try:
            terms = read_terms(path)
            _check(terms, cell, path)
            written[cell["run"]].check(path)
        except ValueError as error:
            unreadable.append((cell, str(error)))
        else:
            found.append(Recorded(cell, terms))
    return Recording(tuple(found), tuple(unreadable))


def _check(terms: RoundTerms, cell: CellResult, path: Path) -> None:
    try:
        check_terms_of(terms, cell.record)
    except InconsistentRecordError as error:
        raise ValueError(f"{path}: {error}") from error
