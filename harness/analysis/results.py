"""Runs with all that a report is made of: their cells and the terms of drafts, as far as they can be read.

What cannot be read costs the rest nothing, and is named. This module does not know tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from harness.analysis.cell import CellResult, analysed
from harness.analysis.recorded_terms import Recording, recording_of
from harness.records.partings import AttributedParting, read_partings
from harness.records.runs import Run, read_runs, refuse_unreadable


@dataclass(frozen=True)
class Results:
    """Runs and the cells in them."""

    runs: tuple[Run, ...]
    cells: tuple[CellResult, ...]

    @property
    def title(self) -> str:
        """The titles of the runs, or their names."""
        manifests = [run.manifest for run in self.runs if run.manifest]
        titles = dict.fromkeys(str(item.get("title") or item.get("name") or "") for item in manifests)
        return "; ".join(title for title in titles if title) or "Results"

    @cached_property
    def recording(self) -> Recording:
        """The cells that have terms of their drafts; read when it is asked for."""
        return recording_of(self.runs, self.cells)

    @cached_property
    def _partings(self) -> tuple[dict[str, tuple[AttributedParting, ...]], tuple[str, ...]]:
        """Those of each run, and what is wrong with files of them."""
        found, wrong = {}, []
        for run in self.runs:
            try:
                found[run.name] = read_partings(run.folder)
            except ValueError as error:
                wrong.append(str(error))
        return found, tuple(wrong)

    @property
    def partings(self) -> Mapping[str, Sequence[AttributedParting]]:
        """What was found where greedy answers part (`rejection-lab partings`), by run; read when it is asked for."""
        return self._partings[0]

    @property
    def unreadable_records(self) -> tuple[str, ...]:
        """What is wrong with each record and manifest that cannot be used; begins with its path."""
        return tuple(text for run in self.runs for text in run.unreadable)

    @property
    def unreadable(self) -> tuple[str, ...]:
        """The same, and what is wrong with each file of terms or partings."""
        return (*self.unreadable_records, *(text for _, text in self.recording.unreadable), *self._partings[1])


def read_results(path: Path) -> Results:
    """Read what lies at a path (see `harness.records.runs.read_runs`).

    Raises:
        ValueError: no cell can be read; the message begins with the path.
    """
    return results_of(read_runs(path))


def results_of(runs: Iterable[Run]) -> Results:
    """The results of runs whose records are read.

    Raises:
        ValueError: there are records, and none has settings that this version can read.
    """
    found = [analysed(run) for run in runs]
    results = Results(tuple(run for run, _ in found), tuple(cell for _, cells in found for cell in cells))
    refuse_unreadable(results.runs)
    return results
