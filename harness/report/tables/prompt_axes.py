"""Acceptance and speed along the prompts: by category of the file, and by the length of the context."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.analysis.by_category import by_category
from harness.analysis.cell import CellResult
from harness.analysis.context_length import by_context_length
from harness.analysis.definitions import INTERVALS, metric
from harness.analysis.prompt_part import PromptPart, speedup_over
from harness.report.cell_names import CONTEXT, column_name, label_notes, varying
from harness.report.entries import metric_number, setting, settings_of
from harness.report.number_format import count
from harness.report.sections import TableKind
from harness.report.table import Entry, Table

METRICS = ("acceptance_rate", "full_draft_length", "output_tokens_per_s")
CONTEXT_NOTE = (
    "context: tokens of prompt and output before the round. Classes hold different prompts and different places of the "
    "answers, so a trend along them need not be one of the length alone. A step's time is shared equally by its "
    "requests: where lengths are mixed in a step, speeds of classes are nearer to each other than with one length at a "
    "time. n/a: too few prompts, or no draft in full."
)
CATEGORY_NOTE = (
    "category: that of the prompt file. speedup: over the baseline on the same prompts. n/a: too few prompts, or "
    "counted for the whole cell alone."
)


@dataclass(frozen=True)
class _Axis:
    """What tells the parts of a cell apart."""

    title: str
    label: str
    counted: str
    """What is counted of each part."""
    note: str
    parts: Callable[[CellResult], Mapping[Any, PromptPart]]


_CATEGORY = _Axis("Acceptance and speed by category", "category", "prompts", CATEGORY_NOTE, by_category)
_CONTEXT_LENGTH = _Axis(
    "Acceptance and speed by context length", "context (tokens)", "drafts", CONTEXT_NOTE, by_context_length
)


def category_tables(cells: Sequence[CellResult]) -> list[Table]:
    """One row per cell and category; nothing where no cell that drafts has two categories."""
    return _tables(_CATEGORY, cells)


def context_length_tables(cells: Sequence[CellResult]) -> list[Table]:
    """One row per cell and class of lengths; nothing where no cell drafted in two classes."""
    return _tables(_CONTEXT_LENGTH, cells)


def _tables(axis: _Axis, cells: Sequence[CellResult]) -> list[Table]:
    found = {id(cell): axis.parts(cell) for cell in cells}
    extra, shown, rows = varying(cells, CONTEXT), [], list[tuple[Entry, ...]]()
    for cell in cells:
        parts = {key: part for key, part in found[id(cell)].items() if not cell.is_baseline and part.num_drafts}
        if len(parts) < 2:
            continue
        shown.append(cell)
        of_baseline = {} if cell.baseline is None else found.get(id(cell.baseline)) or axis.parts(cell.baseline)
        for key, part in parts.items():
            settings = [*settings_of(cell, extra), column_name(cell), setting(cell["num_speculative_tokens"])]
            values = [metric_number(part.estimates.estimate(name), name, cells=[cell]) for name in METRICS]
            speedup = metric_number(speedup_over(of_baseline.get(key), part), "speedup", cells=[cell])
            rows.append((*settings, part.label, count(part.num_counted), *values, speedup))
    if not rows:
        return []
    header = [*extra, "T", "drafter", "verification", "K", axis.label, axis.counted]
    header += [metric(name).label for name in (*METRICS, "speedup")]
    notes = [f"{metric(name).label}: {metric(name).definition}." for name in METRICS]
    notes += [axis.note, INTERVALS, *label_notes(shown)]
    return [Table(axis.title, tuple(header), tuple(rows), tuple(notes))]


CATEGORY = TableKind("category", _CATEGORY.title, lambda results: category_tables(results.cells))
CONTEXT_LENGTH = TableKind(
    "context_length", _CONTEXT_LENGTH.title, lambda results: context_length_tables(results.cells), is_on_page=True
)
