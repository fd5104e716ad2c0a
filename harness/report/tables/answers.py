"""The tables that answer a question, in order. A new one: a module with its function, and its call here."""

from __future__ import annotations

from harness.analysis.results import Results
from harness.report.sections import TableKind, references
from harness.report.table import Table
from harness.report.tables.concurrency import concurrency_tables
from harness.report.tables.depth import depth_tables
from harness.report.tables.depth_choice import depth_choice_tables
from harness.report.tables.draft_dtype import draft_dtype_tables
from harness.report.tables.drafting import drafting_tables
from harness.report.tables.engines import engine_tables
from harness.report.tables.fastest import fastest_tables
from harness.report.tables.lossy import lossy_tables
from harness.report.tables.repeats import repeats_tables


def answer_tables(results: Results) -> list[Table]:
    """Engines, repeats, what is fastest, depths, where speculation pays, drafting by verification, lossy, caches: where
    they vary."""
    left_out = [item for run in results.runs for item in run.manifest.get("skipped", [])]
    skipped = [(item.get("cell") or {}, str(item.get("reason"))) for item in left_out]
    cells, recorded = results.cells, results.recording.cells
    tables = [*engine_tables(cells), *repeats_tables(cells), *fastest_tables(cells), *depth_tables(cells)]
    tables += depth_choice_tables(cells, recorded)
    tables += concurrency_tables(cells)
    tables += drafting_tables(cells, skipped)
    tables += lossy_tables(cells, recorded, references(results))
    return [*tables, *draft_dtype_tables(cells, recorded)]


ANSWERS = TableKind("answers", "Answers", answer_tables, files=r".+\.csv", is_on_page=True)
