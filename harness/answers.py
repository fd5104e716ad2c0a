"""The tables that answer a question about one axis of a sweep, for the axes that some results have.

This module knows which questions there are; what each table shows is in a file of its own.
"""

from __future__ import annotations

from harness.concurrency_table import concurrency_tables
from harness.depth_table import depth_tables
from harness.drafting_table import drafting_tables
from harness.lossy_table import lossy_tables
from harness.replay.recorded import recorded_cells
from harness.results import Results
from harness.table import Table


def answer_tables(results: Results) -> list[Table]:
    """Best depth, where speculation pays, drafting by verification, lossy methods; none without such an axis."""
    left_out = [item for run in results.runs for item in run.manifest.get("skipped", [])]
    skipped = [(item.get("cell") or {}, str(item.get("reason"))) for item in left_out]
    cells, recorded = results.cells, recorded_cells(results.runs, results.cells)
    tables = [*depth_tables(cells), *concurrency_tables(cells), *drafting_tables(cells, skipped)]
    return [*tables, *lossy_tables(cells, recorded, references(results))]


def references(results: Results) -> dict[str, str | None]:
    """The method that the others are compared with, by run; None is the first."""
    return {run.name: run.manifest.get("reference") for run in results.runs}
