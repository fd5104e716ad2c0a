"""The table of right answers: what a method costs or keeps in the task, beside its acceptance and speed."""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan, nan

from harness.analysis.cell import CellResult
from harness.analysis.definitions import TASK_ACCURACY, metric
from harness.analysis.estimates import Estimate, paired_difference
from harness.report.cell_names import CONTEXT, MINUS, have_drafters, name_in_line, summary_order, varying
from harness.report.entries import estimate_number, metric_number, setting, settings_of
from harness.report.missing_values import table_notes
from harness.report.number_format import Number, count
from harness.report.sections import TableKind
from harness.report.table import NONE, Entry, Table

TITLE = "Right answers"
METRICS = ("acceptance_rate", "full_draft_length", "output_tokens_per_s", "speedup")
DIFFERENCE_NOTE = (
    "difference to the baseline: paired by prompt, in percentage points. Of a lossless method it is noise above "
    "temperature 0 and rounding at temperature 0. Answers that the length limit cut are judged as they stand; one that "
    "it cut within its reasoning is wrong. No interval: every prompt has the same verdict, from which resampling "
    "learns nothing."
)


def is_judged(cell: CellResult) -> bool:
    """Whether some of its answers were judged."""
    return not isnan(cell.estimate(TASK_ACCURACY).value)


def task_accuracy_tables(cells: Sequence[CellResult]) -> list[Table]:
    """One row per cell whose answers were judged, baselines first; nothing where there is none."""
    shown = [cell for cell in sorted(cells, key=summary_order) if not cell.record.has_failed and is_judged(cell)]
    if not shown:
        return []
    extra, label = varying(cells, CONTEXT), metric(TASK_ACCURACY).label
    header = [*extra, "T", "drafter", "K", "verification", "drafts", "judged", label, f"{label}{MINUS}baseline"]
    header += [metric(name).label for name in METRICS] + ["labels"]
    names = [TASK_ACCURACY, *METRICS]
    notes = (*table_notes(shown, names), DIFFERENCE_NOTE)
    return [Table(TITLE, tuple(header), tuple(_row(cell, extra) for cell in shown), notes)]


def task_lines(cells: Sequence[CellResult]) -> list[str]:
    """A line for each cell whose answers were judged."""
    shown = [cell for cell in sorted(cells, key=summary_order) if not cell.record.has_failed and is_judged(cell)]
    settings = varying(shown, ("temperature", *CONTEXT))
    return [_line(cell, name_in_line(cell, settings, have_drafters(shown))) for cell in shown]


def _line(cell: CellResult, name: str) -> str:
    accuracy, difference = _number(cell.estimate(TASK_ACCURACY)), _difference(cell)
    beside = "" if difference is NONE else f"; {difference}{MINUS}baseline"
    judged = count(cell.estimates.total("num_checked_answers"))
    return f"{metric(TASK_ACCURACY).label}, {name}: {accuracy}; {judged} judged{beside}"


def _row(cell: CellResult, extra: Sequence[str]) -> tuple[Entry, ...]:
    settings: list[Entry] = [NONE] * 3
    if not cell.is_baseline:
        settings = [setting(cell["num_speculative_tokens"]), cell["verification"], cell.drafts]
    judged = count(cell.estimates.total("num_checked_answers"))
    accuracy = _number(cell.estimate(TASK_ACCURACY))
    values = [NONE if cell.is_baseline and metric(name).of_tokens else estimate_number(cell, name) for name in METRICS]
    return (*settings_of(cell, extra), *settings, judged, accuracy, _difference(cell), *values, cell["labels"])


def _difference(cell: CellResult) -> Entry:
    if cell.baseline is None or cell.is_baseline or not is_judged(cell.baseline):
        return NONE
    found = paired_difference(cell.baseline.estimates, cell.estimates, TASK_ACCURACY)
    return _number(found, signed=True)


def _number(found: Estimate, signed: bool = False) -> Number:
    shown = Estimate(found.value, nan, nan) if found.low == found.high else found
    return metric_number(shown, TASK_ACCURACY, signed=signed)


RIGHT_ANSWERS = TableKind("right_answers", TITLE, lambda results: task_accuracy_tables(results.cells), is_on_page=True)
