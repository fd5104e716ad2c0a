"""The table of acceptance by context length, where a cell drafted in contexts of several classes of lengths."""

from __future__ import annotations

from collections.abc import Sequence

from harness.analysis.cell import CellResult
from harness.analysis.context_length import ContextClass, by_context_length
from harness.analysis.definitions import INTERVALS, metric
from harness.report.cell_names import CONTEXT, column_name, label_notes, varying
from harness.report.entries import metric_number, setting, settings_of
from harness.report.number_format import count
from harness.report.table import Entry, Table

METRICS = ("acceptance_rate", "full_draft_length")
CONTEXT_NOTE = (
    "context: tokens of prompt and output before the round. Classes hold different prompts and different places of the "
    "answers, so a trend along them need not be one of the length alone. n/a: too few prompts, or no draft in full."
)


def context_length_tables(cells: Sequence[CellResult]) -> list[Table]:
    """One row per cell and class of lengths; nothing where no cell drafted in two classes."""
    found = [(cell, by_context_length(cell)) for cell in cells if not cell.is_baseline]
    shown = [(cell, classes) for cell, classes in found if len(classes) > 1]
    if not shown:
        return []
    extra = varying(cells, CONTEXT)
    header = [*extra, "T", "drafter", "verification", "K", "context (tokens)", "drafts"]
    header += [metric(name).label for name in METRICS]
    rows = [_row(cell, item, extra) for cell, classes in shown for item in classes]
    notes = [f"{metric(name).label}: {metric(name).definition}." for name in METRICS]
    notes += [CONTEXT_NOTE, INTERVALS, *label_notes([cell for cell, _ in shown])]
    return [Table("Acceptance by context length", tuple(header), tuple(rows), tuple(notes))]


def _row(cell: CellResult, item: ContextClass, extra: Sequence[str]) -> tuple[Entry, ...]:
    lengths = f"{item.first} and more" if item.after is None else f"{item.first} to {item.after - 1}"
    values = [metric_number(item.estimates.estimate(name), name) for name in METRICS]
    depth = setting(cell["num_speculative_tokens"])
    return (*settings_of(cell, extra), column_name(cell), depth, lengths, count(item.num_drafts), *values)
