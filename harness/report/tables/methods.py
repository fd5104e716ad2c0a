"""The methods of each setting side by side, as in vLLM PR 35461, and paired differences of every two.

Numbers with all digits: `results_frame` and `comparisons_frame`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations

from harness.analysis.cell import CellResult
from harness.analysis.comparison import (
    SHAPE,
    Group,
    comparisons_frame,
    expected_difference,
    groups,
    method_name,
    same_law,
    takes_argmax,
)
from harness.analysis.definitions import TASK_ACCURACY, footnotes, metric
from harness.analysis.estimates import Estimate, paired_difference, paired_ratio
from harness.records.request import EXPECTED_METHODS
from harness.report.answer_notes import OTHER_ANSWERS, SAME_LAW, answers_entry, argmax_notes, law_notes
from harness.report.bound_notes import bound_notes
from harness.report.cell_names import (
    CONTEXT,
    MINUS,
    baseline_name,
    column_name,
    group_title,
    label_notes,
    summary_order,
    varying,
)
from harness.report.entries import estimate_number, metric_number, setting, settings_of
from harness.report.missing_values import missing_value_notes
from harness.report.number_format import NOT_AVAILABLE, Number, count
from harness.report.sections import TableKind, references
from harness.report.table import NONE, Entry, Table
from harness.report.tables.partings import partings_tables
from harness.report.tables.summary import EXPECTED_LENGTHS, counting_every_round, recorded_metrics
from harness.report.tables.task_accuracy import is_judged

DIFFERENT_DRAFTS = (
    "draft sampling differs: part of such a difference comes from how the drafts were drawn, not from verification."
)

PR_NAMES = (
    "In vLLM PR 35461 the column strict was the method called coupled here, and probabilistic as first merged was the "
    "one called pr35461."
)

PER_METHOD_METRICS = (
    "wall_s",
    "requests_per_s",
    "output_tokens_per_s",
    "speedup",
    "total_tokens_per_s",
    *(f"{latency}_{statistic}_ms" for latency in ("ttft", "tpot", "itl") for statistic in ("mean", "p50", "p99")),
    "acceptance_rate",
    "mean_acceptance_length",
    "full_draft_length",
    *EXPECTED_LENGTHS,
    "share_of_bound",
)

PER_METHOD_COUNTS = {
    "num_drafts": "drafts",
    "num_draft_tokens": "draft tokens",
    "num_accepted_tokens": "accepted tokens",
}


def method_tables(cells: Sequence[CellResult], references: Mapping[str, str | None] | None = None) -> list[Table]:
    """For each target, drafter, K and temperature the methods side by side, as in the table of vLLM PR 35461.

    The columns are the baseline, the method that the others are compared with, and each other method with its paired
    difference to that one beside it.

    Args:
        cells: of any runs.
        references: run -> method that the others are compared with; where there is none, the first.
    """
    references = references or {}
    return [
        _method_table(group, _reference(group, references.get(group.first["run"])), group_title(group, cells))
        for group in groups(cells)
    ]


def _reference(group: Group, method: str | None) -> CellResult:
    return next((cell for cell in group.cells if method_name(cell) == method), group.first)


def _method_table(group: Group, first: CellResult, title: str) -> Table:
    others = [cell for cell in group.cells if cell is not first]
    shown = [*([group.baseline] if group.baseline else []), first, *others]
    header = ["metric", *([baseline_name(group.baseline)] if group.baseline else []), column_name(first)]
    for cell in others:
        header += [column_name(cell), f"{column_name(cell)}{MINUS}{first.method}"]
    positions = [
        f"acceptance_{what}_per_pos_{position}"
        for position in range(1, group.num_positions + 1)
        for what in ("rate", "bound")
    ]

    def row(
        label: str, value: Callable[[CellResult], Entry], change: Callable[[CellResult], Entry]
    ) -> tuple[Entry, ...]:
        leading = [value(cell) for cell in shown[: len(shown) - len(others)]]
        return label, *leading, *(entry for cell in others for entry in (value(cell), change(cell)))

    def metric_row(name: str) -> tuple[Entry, ...]:
        return row(metric(name).label, lambda cell: _value(cell, name), lambda cell: difference(first, cell, name))

    def count_row(name: str, label: str) -> tuple[Entry, ...]:
        return row(label, lambda cell: _count(cell, name), lambda cell: _count_difference(first, cell, name))

    metrics, positions = recorded_metrics(PER_METHOD_METRICS, shown), recorded_metrics(positions, shown)
    rows = [metric_row(name) for name in metrics]
    rows += [count_row(name, label) for name, label in PER_METHOD_COUNTS.items()]
    rows += [metric_row(name) for name in positions]
    names = [*metrics, *positions]
    notes = [
        *footnotes(names),
        *missing_value_notes(shown, names),
        *bound_notes(shown, names),
        "Differences of percentages are in percentage points.",
    ]
    return Table(title, tuple(header), tuple(rows), (*notes, *_law_notes(group.cells), *label_notes(shown), PR_NAMES))


def _law_notes(cells: Sequence[CellResult]) -> list[str]:
    """Notes that the cells of a comparison need."""
    warnings = law_notes(cells)
    if len({cell["draft_sampling"] for cell in cells}) > 1:
        warnings.append(DIFFERENT_DRAFTS)
    return warnings


def _value(cell: CellResult, name: str) -> Entry:
    """A metric without its interval; a dash for what a baseline does not have."""
    if cell.is_baseline and metric(name).of_tokens:
        return NONE
    shown = estimate_number(cell, name)
    return replace(shown, value=cell.estimate(name).value, style=metric(name).style, low=None, high=None)


def difference(first: CellResult, second: CellResult, name: str) -> Entry:
    """second - first with its interval; an exact 0 where the law is the same and the noise would be all there is."""
    if metric(name).of_tokens and same_law(first, second):
        return same_law_number(first, second, name)
    if name == "speedup":
        return _speedup_ratio(first, second)
    found = paired_difference(first.estimates, second.estimates, name)
    return metric_number(found, name, signed=True, cells=[first, second])


def same_law_number(first: CellResult, second: CellResult, name: str) -> Number:
    """The difference of two cells of the same law: 0, and at temperature 0 whatever else was observed."""
    observed = paired_difference(first.estimates, second.estimates, name)
    if first.is_argmax and any(abs(item) > 1e-12 for item in observed):
        return replace(metric_number(observed, name, signed=True), note="same law")
    return count(0, "same law")


def _speedup_ratio(first: CellResult, second: CellResult) -> Entry:
    if first.baseline is None:
        return NOT_AVAILABLE
    return throughput_ratio(first, second)


def throughput_ratio(first: CellResult, second: CellResult) -> Number:
    """Tokens per second of the second cell over those of the first, paired by prompt."""
    ratio = paired_ratio(first.estimates, second.estimates, "output_tokens_per_s")
    return metric_number(ratio, "output_tokens_per_s", style="length", sign="×", cells=[first, second])


def _count(cell: CellResult, name: str) -> Entry:
    return NONE if cell.is_baseline else count(cell.estimates.total(name))


def _count_difference(first: CellResult, second: CellResult, name: str) -> Entry:
    difference = second.estimates.total(name) - first.estimates.total(name)
    if same_law(first, second) and (difference == 0 or not first.is_argmax):
        return count(0, "same law")
    return Number(difference, style="count", signed=True)


PAIRED_METRICS = ("acceptance_rate", "mean_acceptance_length", "full_draft_length")


def paired_table(cells: Sequence[CellResult]) -> Table:
    """Every two methods of a group, and every two shapes of as many draft tokens: paired differences of acceptance, and
    the ratio of their throughputs."""
    extra = varying(cells, CONTEXT)
    judged = [TASK_ACCURACY] if any(is_judged(cell) for cell in cells if not cell.is_baseline) else []
    names = [*PAIRED_METRICS, *counting_every_round(cells), *judged]
    header = [*extra, "T", "drafter", "K", "comparison", "drafts"]
    compares_answers = any(takes_argmax(cell) for cell in cells if not cell.is_baseline)
    header += ["other answers"] * compares_answers
    header += [metric(name).label for name in names] + ["expected length, same drafts"]
    header += ["output throughput (ratio)", "labels"]
    rows: list[tuple[Entry, ...]] = []
    for group in sorted(groups(cells, SHAPE), key=lambda item: summary_order(item.first)):
        for first, second in combinations(group.cells, 2):
            settings = [*settings_of(first, extra), setting(first["num_speculative_tokens"])]
            settings.append(f"{second.method}{MINUS}{first.method}")
            sampling = dict.fromkeys(_drawn(cell) for cell in (second, first))
            labels = "; ".join(dict.fromkeys(text for text in (second["labels"], first["labels"]) if text))
            settings += [" / ".join(sampling), *[answers_entry(first, second)] * compares_answers]
            rows.append((*settings, *_paired_numbers(first, second, names), labels))
    notes = footnotes([*names, "output_tokens_per_s"])
    notes.append(
        "expected length, same drafts: difference of the expected acceptance lengths of the two methods, both on the "
        "drafts of the one named second. –: drafts are drawn differently, or only "
        f"{', '.join(EXPECTED_METHODS)} have it recorded."
    )
    drafted = [cell for cell in cells if not cell.is_baseline]
    notes += missing_value_notes(drafted, [*names, *(f"expected_length_{item}" for item in EXPECTED_METHODS)])
    notes += [SAME_LAW, *argmax_notes(cells), *[OTHER_ANSWERS] * compares_answers]
    notes += [DIFFERENT_DRAFTS, *label_notes(cells)]
    return Table("Paired differences", tuple(header), tuple(rows), tuple(notes))


def _drawn(cell: CellResult) -> str:
    """How its drafts are drawn, and the shape of their tree."""
    return f"{cell['draft_sampling']} ({cell.tree_text})" if cell["tree"] else cell["draft_sampling"]


def _paired_numbers(first: CellResult, second: CellResult, names: Sequence[str]) -> list[Entry]:
    shown = [difference(first, second, name) for name in names]
    expected: Estimate | None = expected_difference(first, second)
    if expected is None:
        shown.append(NONE)
    elif same_law(first, second):
        shown.append(count(0, "same law"))
    else:
        shown.append(Number(*expected, style="length", signed=True))
    ratio = paired_ratio(first.estimates, second.estimates, "output_tokens_per_s")
    return [*shown, metric_number(ratio, "output_tokens_per_s", style="length", cells=[first, second])]


METHODS = TableKind(
    "methods",
    "Methods side by side",
    lambda results: method_tables(results.cells, references(results)),
    files=r".+-K-\d+-T-\d.*\.csv",
)
PAIRED = TableKind(
    "paired",
    "Paired differences",
    lambda results: [paired_table(results.cells), *partings_tables(results.cells, results.partings)],
    frame=lambda results: comparisons_frame(results.cells),
    without="No two cells of these results can be compared in pairs.",
)
