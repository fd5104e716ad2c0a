"""The table of all cells, one row each, baselines first within each temperature."""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan

from harness.metrics.cell import Cell
from harness.metrics.definitions import footnotes, metric
from harness.records.schema import EXPECTED_METHODS
from harness.report.cell_names import CONTEXT, NONE, drafter_name, label_notes, summary_order, varying
from harness.report.metric_numbers import estimate_text
from harness.report.missing_values import gap_notes
from harness.report.number_format import format_value
from harness.report.table import Table

EXPECTED_LENGTHS = tuple(f"expected_length_{method}" for method in EXPECTED_METHODS)


def summary_table(cells: Sequence[Cell]) -> Table:
    """One row per cell, baselines first within each temperature."""
    extra = varying(cells, CONTEXT)
    shown = ["acceptance_rate", "mean_acceptance_length", "full_draft_length"]
    shown += recorded_metrics(EXPECTED_LENGTHS, cells)
    timed = ["output_tokens_per_s", "speedup", "ttft_p50_ms", "itl_p99_ms"]
    header = [*extra, "T", "drafter", "K", "verification", "drafts"]
    header += [metric(name).label for name in [*shown, *timed]] + ["draft-logit cache (MiB)", "labels"]
    rows = []
    for cell in sorted(cells, key=summary_order):
        settings = [str(cell[name]) for name in extra] + [f"{cell['temperature']:g}", drafter_name(cell)]
        if cell.is_baseline:
            settings += [NONE] * 3
            numbers = [NONE] * len(shown)
        else:
            settings += [str(cell["num_speculative_tokens"]), cell["verification"], cell.drafts]
            numbers = [estimate_text(cell, name) for name in shown]
        numbers += [estimate_text(cell, name) for name in timed]
        cache = format_value(cell.record.draft_logit_cache_bytes / 2**20, "length")
        rows.append((*settings, *numbers, NONE if cell.is_baseline else cache, cell["labels"]))
    notes = (*footnotes([*shown, *timed]), *gap_notes(cells, [*shown, *timed]), *label_notes(cells))
    return Table("All cells", tuple(header), tuple(rows), notes)


def recorded_metrics(names: Sequence[str], cells: Sequence[Cell]) -> list[str]:
    """The metrics without the expected lengths that no cell recorded, as in runs with expected_acceptance=false."""
    return [
        name
        for name in names
        if name not in EXPECTED_LENGTHS or not all(isnan(cell.estimate(name).value) for cell in cells)
    ]
