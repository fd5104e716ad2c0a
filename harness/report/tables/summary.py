"""The table of all cells, one row each, baselines first within each temperature."""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan

from harness.analysis.cell import CellResult
from harness.analysis.definitions import is_measured_beside, metric
from harness.records.request import EXPECTED_METHODS
from harness.report.cell_names import CONTEXT, layer_notes, summary_order, varying
from harness.report.entries import estimate_number, setting, settings_of
from harness.report.missing_values import table_notes
from harness.report.number_format import Number
from harness.report.sections import TableKind
from harness.report.table import NONE, Entry, Table

EXPECTED_LENGTHS = tuple(f"expected_length_{method}" for method in EXPECTED_METHODS)


def summary_table(cells: Sequence[CellResult]) -> Table:
    """One row per cell, baselines first within each temperature."""
    extra = varying(cells, CONTEXT)
    shown = ["acceptance_rate", "mean_acceptance_length", "full_draft_length", *counting_every_round(cells)]
    shown += recorded_metrics([*EXPECTED_LENGTHS, "share_of_bound"], cells)
    timed = ["output_tokens_per_s", "speedup", "ttft_p50_ms", "itl_p99_ms"]
    header = [*extra, "T", "drafter", "K", "verification", "drafts"]
    header += [metric(name).label for name in [*shown, *timed]] + ["draft-logit cache (MiB)", "labels"]
    rows: list[tuple[Entry, ...]] = []
    for cell in sorted(cells, key=summary_order):
        times = [estimate_number(cell, name) for name in timed]
        if cell.is_baseline:
            rows.append((*settings_of(cell, extra), *[NONE] * (3 + len(shown)), *times, NONE, cell["labels"]))
            continue
        settings = [setting(cell["num_speculative_tokens"]), cell["verification"], cell.drafts]
        numbers = [estimate_number(cell, name) for name in shown]
        cache = Number(cell.draft_logit_cache_mib, style="length")
        rows.append((*settings_of(cell, extra), *settings, *numbers, *times, cache, cell["labels"]))
    notes = (*table_notes(cells, [*shown, *timed]), *layer_notes(cells))
    return Table("All cells", tuple(header), tuple(rows), notes)


def counting_every_round(cells: Sequence[CellResult]) -> list[str]:
    """The metric that trees, and depths that adapt, are compared by: lengths leave out other shares of their rounds."""
    return ["tokens_per_forward"] if any(cell["tree"] or cell["depth"] for cell in cells) else []


def recorded_metrics(names: Sequence[str], cells: Sequence[CellResult]) -> list[str]:
    """The metrics without those that no cell measured, as in runs with expected_acceptance=false."""
    return [
        name
        for name in names
        if not is_measured_beside(name) or not all(isnan(cell.estimate(name).value) for cell in cells)
    ]


SUMMARY = TableKind("summary", "All cells", lambda results: [summary_table(results.cells)], is_on_page=True)
