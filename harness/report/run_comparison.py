"""Differences between two runs: settings, provenance, and the metrics of cells that match, paired by prompt.

Which cells match, and why others do not: `harness.report.cell_matching`. A setting that differs between the runs is
listed. This module knows settings and metrics; it does not know how a comparison is printed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness.analysis.cell import CellResult
from harness.analysis.definitions import footnotes, metric
from harness.analysis.estimates import paired_difference, paired_ratio
from harness.analysis.flat_settings import distinct_values, listed
from harness.analysis.results import Results, results_of
from harness.config.usage import used_settings
from harness.records.runs import Run, read_runs
from harness.report.cell_matching import RULE, Pair, Side, matching_cells, matching_warnings, why_unmatched
from harness.report.cell_names import MINUS, baseline_name, drafter_name, drafts_text, label_notes, label_suffix
from harness.report.entries import metric_number, same_answers
from harness.report.number_format import Number, count
from harness.report.table import NONE, Entry, Table

COMPARED = ("acceptance_rate", "full_draft_length", "output_tokens_per_s", "ttft_p50_ms")
AS_RATIO = ("output_tokens_per_s",)
"""Compared as second / first, the others as second - first."""
SETTINGS = "Settings that differ"
IDENTITY_NOTE = (
    "same answers: requests (prompt, turn, copy) of both cells whose output tokens are identical, of those that both "
    "have. Equal settings and seeds on the same machine with the same versions give the same tokens."
)
DRIFT_NOTE = (
    "The two runs were not interleaved: differences of times and throughputs include whatever changed on the machine "
    "between them, which no interval here covers."
)
EMPTY_NOTE = "–: a baseline has no drafts to accept; a difference needs prompts in common."


@dataclass(frozen=True)
class RunComparison:
    """Two runs side by side."""

    first: str
    second: str
    tables: tuple[Table, ...]
    warnings: tuple[str, ...]
    unreadable: tuple[str, ...]
    """What is wrong with each record of the runs that cannot be used; begins with its path."""
    summary: str
    """How many cells are paired, and the largest differences."""

    @property
    def title(self) -> str:
        return f"Differences: {self.second}{MINUS}{self.first}"

    @property
    def settings_lines(self) -> list[str]:
        """The settings that differ, as their table has them: a heading, and a line for each."""
        rows = next((table.texts for table in self.tables if table.title == SETTINGS), ())
        heading = f"settings that differ, {self.first} → {self.second}:"
        return [heading, *(f"  {name}: {first} → {second}" for name, first, second in rows)] if rows else []


def read_two_runs(first: Path, second: Path) -> tuple[Results, RunComparison]:
    """Read two runs and compare them.

    Returns:
        the results of both, with names that differ, and their comparison.

    Raises:
        ValueError: a path does not hold exactly one run; the message names it.
    """
    runs = _with_own_names(_only_run(first), _only_run(second))
    results, (one, other) = results_of(runs), (run.name for run in runs)
    sides = ([cell for cell in results.cells if cell["run"] == name] for name in (one, other))
    comparison = compare_runs(one, next(sides), other, next(sides))
    return results, replace(comparison, unreadable=results.unreadable_records)


def _only_run(path: Path) -> Run:
    runs = [run for run in read_runs(path) if run.cells]
    if len(runs) != 1:
        raise ValueError(f"{path}: expected one run to compare, found {len(runs)}; name its folder")
    return runs[0]


def _with_own_names(first: Run, second: Run) -> tuple[Run, Run]:
    if first.name != second.name:
        return first, second
    return replace(first, name=f"{first.name} (first)"), replace(second, name=f"{second.name} (second)")


def compare_runs(
    first_name: str, first: Sequence[CellResult], second_name: str, second: Sequence[CellResult]
) -> RunComparison:
    """Compare the cells of two runs."""
    sides = Side(first_name, tuple(first)), Side(second_name, tuple(second))
    pairs, names = matching_cells(*sides), (first_name, second_name)
    configs = [[used_settings(cell.record.config) for cell in side.cells] for side in sides]
    provenances = [[item for cell in side.cells for item in cell.record.provenances] for side in sides]
    tables = [
        _values_table(SETTINGS, names, *configs),
        _values_table("Provenance that differs", names, *provenances),
        _difference_table(names, pairs),
        _unmatched_table(*sides, pairs),
    ]
    warnings = tuple(matching_warnings(*sides, pairs))
    shown = tuple(table for table in tables if table.rows)
    return RunComparison(first_name, second_name, shown, warnings, (), _summary(pairs))


def _summary(pairs: Sequence[Pair]) -> str:
    parts = [f"{len(pairs)} cells paired"]
    for name in ("full_draft_length", "output_tokens_per_s"):
        sizes = [(_size(pair, name), number) for number, pair in enumerate(pairs)]
        known = [item for item in sizes if math.isfinite(item[0])]
        if known:
            first, second = pairs[max(known)[1]]
            what = "ratio furthest from 1" if name in AS_RATIO else "largest difference"
            text = _difference(first, second, name)
            parts.append(f"{metric(name).label}, {what}: {text} ({_cell_text(second)})")
    return "; ".join(parts)


def _size(pair: Pair, name: str) -> float:
    """How much a metric of two cells differs; nan where it cannot be compared."""
    first, second = pair
    if not pair.num_common_prompts or (first.is_baseline and metric(name).of_tokens):
        return math.nan
    if name in AS_RATIO:
        ratio = paired_ratio(first.estimates, second.estimates, name, across_sessions=True).value
        return abs(math.log(ratio)) if ratio > 0 else math.nan
    return abs(paired_difference(first.estimates, second.estimates, name, across_sessions=True).value)


def _values_table(title: str, names: tuple[str, str], first: Sequence[Mapping], second: Sequence[Mapping]) -> Table:
    """The values that the two runs do not have in common."""
    left, right = distinct_values(first), distinct_values(second)
    rows = [
        (name, listed(left.get(name, [NONE])), listed(right.get(name, [NONE])))
        for name in dict.fromkeys([*left, *right])
        if set(left.get(name, [NONE])) != set(right.get(name, [NONE]))
    ]
    return Table(title, ("name", *names), tuple(rows))


def _unmatched_table(first: Side, second: Side, pairs: Sequence[Pair]) -> Table:
    """The cells that only one of the runs has, and why."""
    rows: list[tuple[str, str, str]] = []
    for index, (own, other) in enumerate(((first, second), (second, first))):
        matched = {pair[index].record.cell_id for pair in pairs}
        alone = [cell for cell in own.cells if cell.record.cell_id not in matched]
        rows += [(own.name, _cell_text(cell), why_unmatched(cell, own, other)) for cell in alone]
    return Table("Cells without a partner", ("run", "cell", "why"), tuple(rows), (RULE,))


def _difference_table(names: tuple[str, str], pairs: Sequence[Pair]) -> Table:
    header = ["T", "drafter", "K", "verification", "drafts", "prompts in common", "same answers"]
    for name in COMPARED:
        how = "ratio" if name in AS_RATIO else "difference"
        label = metric(name).label
        header += [f"{label}, {names[0]}", f"{label}, {names[1]}", f"{label}, {how}"]
    rows = [_difference_row(pair) for pair in pairs]
    shown = [cell for pair in pairs for cell in pair]
    notes = (*footnotes(COMPARED), IDENTITY_NOTE, DRIFT_NOTE, EMPTY_NOTE, *label_notes(shown))
    return Table(f"Paired differences, {names[1]}{MINUS}{names[0]}", tuple(header), tuple(rows), notes)


def _difference_row(pair: Pair) -> tuple[Entry, ...]:
    first, second = pair
    shown: list[Entry] = [
        _both(f"{first['temperature']:g}", f"{second['temperature']:g}"),
        _both(drafter_name(first), drafter_name(second)),
        _both(*(NONE if cell.is_baseline else str(cell["num_speculative_tokens"]) for cell in (first, second))),
        _both(_method(first), _method(second)),
        _both(first.drafts or NONE, second.drafts or NONE),
        count(pair.num_common_prompts),
        same_answers(first, second),
    ]
    for name in COMPARED:
        if first.is_baseline and metric(name).of_tokens:
            shown += [NONE] * 3
        else:
            shown += [Number(cell.estimate(name).value, style=metric(name).style) for cell in (first, second)]
            shown.append(_difference(first, second, name) if pair.num_common_prompts else NONE)
    return tuple(shown)


def _difference(first: CellResult, second: CellResult, name: str) -> Number:
    if name in AS_RATIO:
        return metric_number(
            paired_ratio(first.estimates, second.estimates, name, across_sessions=True), name, style="length"
        )
    return metric_number(
        paired_difference(first.estimates, second.estimates, name, across_sessions=True), name, signed=True
    )


def _both(first: str, second: str) -> str:
    return first if first == second else f"{first} → {second}"


def _method(cell: CellResult) -> str:
    return baseline_name(cell) if cell.is_baseline else cell["verification"] + label_suffix(cell)


def _cell_text(cell: CellResult) -> str:
    if cell.is_baseline:
        return f"{_method(cell)}, T = {cell['temperature']:g}"
    return (
        f"{drafter_name(cell)}, K = {cell['num_speculative_tokens']}, T = {cell['temperature']:g}, {_method(cell)}, "
        f"{drafts_text(cell)}"
    )
