"""The tables that answer a question about one axis of a sweep, for the axes that some results have.

This module knows which questions there are; what each table shows is in a file of its own.
"""

from __future__ import annotations

from harness.metrics.recorded_terms import recorded_cells
from harness.metrics.results import Results
from harness.report.table import Table
from harness.report.tables.concurrency import concurrency_tables
from harness.report.tables.depth import depth_tables
from harness.report.tables.draft_dtype import draft_dtype_tables
from harness.report.tables.drafting import drafting_tables
from harness.report.tables.lossy import lossy_tables


def answer_tables(results: Results) -> list[Table]:
    """Best depth, where speculation pays, drafts by verification, lossy methods, caches; none without such an axis."""
    left_out = [item for run in results.runs for item in run.manifest.get("skipped", [])]
    skipped = [(item.get("cell") or {}, str(item.get("reason"))) for item in left_out]
    cells, recorded = results.cells, recorded_cells(results.runs, results.cells)
    tables = [*depth_tables(cells), *concurrency_tables(cells), *drafting_tables(cells, skipped)]
    tables += lossy_tables(cells, recorded, references(results))
    return [*tables, *draft_dtype_tables(cells, recorded)]


def references(results: Results) -> dict[str, str | None]:
    """The method that the others are compared with, by run; None is the first."""
    return {run.name: run.manifest.get("reference") for run in results.runs}
