"""What a report is about: runs, and the cells in them.

This module knows records and metrics; it does not know how they are shown.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from harness.metrics.cell import CellResult, analyse
from harness.records.runs import Run, read_runs


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


def read_results(path: Path) -> Results:
    """Read what lies at a path (see `harness.records.runs.read_runs`); raises ValueError with the path."""
    runs = tuple(read_runs(path))
    return Results(runs, tuple(analyse(runs)))
