"""The methods of each setting side by side, as in vLLM PR 35461, and paired differences of every two.

Numbers with all digits: `results_frame` and `comparisons_frame`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations

from harness.metrics.cell import Cell
from harness.metrics.comparison import SAME_LAW, Group, expected_difference, groups, method_name, same_law
from harness.metrics.definitions import footnotes, metric
from harness.metrics.estimates import Estimate, paired_difference, paired_ratio
from harness.records.schema import EXPECTED_METHODS
from harness.report.cell_names import (
    CONTEXT,
    MINUS,
    NONE,
    baseline_name,
    column_name,
    drafter_name,
    group_title,
    label_notes,
    summary_order,
    varying,
)
from harness.report.metric_numbers import metric_text
from harness.report.missing_values import gap_notes
from harness.report.number_format import NOT_AVAILABLE, format_estimate, format_value
from harness.report.table import Table
from harness.report.tables.summary import EXPECTED_LENGTHS, recorded_metrics

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
)

PER_METHOD_COUNTS = {
    "num_drafts": "drafts",
    "num_draft_tokens": "draft tokens",
    "num_accepted_tokens": "accepted tokens",
}


def method_tables(cells: Sequence[Cell], references: Mapping[str, str | None] | None = None) -> list[Table]:
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


def _reference(group: Group, method: str | None) -> Cell:
    return next((cell for cell in group.cells if method_name(cell) == method), group.first)


def _method_table(group: Group, first: Cell, title: str) -> Table:
    others = [cell for cell in group.cells if cell is not first]
    shown = [*([group.baseline] if group.baseline else []), first, *others]
    header = ["metric", *([baseline_name(group.baseline)] if group.baseline else []), column_name(first)]
    for cell in others:
        header += [column_name(cell), f"{column_name(cell)}{MINUS}{first.method}"]
    positions = [f"acceptance_rate_per_pos_{position}" for position in range(1, group.num_positions + 1)]

    def row(label: str, value: Callable[[Cell], str], difference: Callable[[Cell], str]) -> tuple[str, ...]:
        leading = [value(cell) for cell in shown[: len(shown) - len(others)]]
        return label, *leading, *(text for cell in others for text in (value(cell), difference(cell)))

    def metric_row(name: str) -> tuple[str, ...]:
        return row(metric(name).label, lambda cell: _value_text(cell, name), lambda c: _difference_text(first, c, name))

    def count_row(name: str, label: str) -> tuple[str, ...]:
        return row(label, lambda cell: _count_text(cell, name), lambda cell: _count_difference(first, cell, name))

    metrics = recorded_metrics(PER_METHOD_METRICS, shown)
    rows = [metric_row(name) for name in metrics]
    rows += [count_row(name, label) for name, label in PER_METHOD_COUNTS.items()]
    rows += [metric_row(name) for name in positions]
    names = [*metrics, *positions]
    notes = [*footnotes(names), *gap_notes(shown, names), "Differences of percentages are in percentage points."]
    return Table(title, tuple(header), tuple(rows), (*notes, *_remarks(group.cells), *label_notes(shown), PR_NAMES))


def _remarks(cells: Sequence[Cell]) -> list[str]:
    """Remarks that the cells of a comparison need."""
    warnings = []
    if any(same_law(first, second) for first, second in combinations(cells, 2)):
        warnings.append(SAME_LAW)
    if len({cell["draft_sampling"] for cell in cells}) > 1:
        warnings.append(DIFFERENT_DRAFTS)
    return warnings


def _value_text(cell: Cell, name: str) -> str:
    """A metric without its interval; a dash for what a baseline does not have."""
    if cell.is_baseline and metric(name).of_tokens:
        return NONE
    return format_value(cell.estimate(name).value, metric(name).style)


def _difference_text(first: Cell, second: Cell, name: str) -> str:
    """second - first with its interval; an exact 0 where the law is the same and the noise would be all there is."""
    if metric(name).of_tokens and same_law(first, second):
        return same_law_text(first, second, name)
    if name == "speedup":
        return _speedup_difference(first, second)
    return metric_text(paired_difference(first.estimates, second.estimates, name), name, signed=True)


def same_law_text(first: Cell, second: Cell, name: str) -> str:
    """The difference of two cells of the same law: 0, and at temperature 0 whatever else was observed."""
    observed = paired_difference(first.estimates, second.estimates, name)
    if first["temperature"] == 0 and any(abs(item) > 1e-12 for item in observed):
        return f"{metric_text(observed, name, signed=True)} (same law)"
    return "0 (same law)"


def _speedup_difference(first: Cell, second: Cell) -> str:
    if first.baseline is None:
        return NOT_AVAILABLE
    ratio = paired_ratio(first.estimates, second.estimates, "output_tokens_per_s")
    return f"× {metric_text(ratio, 'output_tokens_per_s', style='length')}"


def _count_text(cell: Cell, name: str) -> str:
    return NONE if cell.is_baseline else format_value(cell.estimates.total(name), "count")


def _count_difference(first: Cell, second: Cell, name: str) -> str:
    difference = second.estimates.total(name) - first.estimates.total(name)
    if same_law(first, second) and (difference == 0 or first["temperature"] > 0):
        return "0 (same law)"
    return format_value(difference, "count", signed=True)


PAIRED_METRICS = ("acceptance_rate", "mean_acceptance_length", "full_draft_length")


def paired_table(cells: Sequence[Cell]) -> Table:
    """Every two methods of a group: paired differences of acceptance, and the ratio of their throughputs."""
    extra = varying(cells, CONTEXT)
    header = [*extra, "T", "drafter", "K", "comparison", "drafts"]
    header += [metric(name).label for name in PAIRED_METRICS] + ["expected length, same drafts"]
    header += ["output throughput (ratio)", "labels"]
    rows = []
    for group in sorted(groups(cells), key=lambda item: summary_order(item.first)):
        for first, second in combinations(group.cells, 2):
            settings = [str(first[name]) for name in extra] + [f"{first['temperature']:g}", drafter_name(first)]
            settings += [
                str(first["num_speculative_tokens"]),
                f"{second.method}{MINUS}{first.method}",
            ]
            sampling = dict.fromkeys((second["draft_sampling"], first["draft_sampling"]))
            labels = "; ".join(dict.fromkeys(text for text in (second["labels"], first["labels"]) if text))
            rows.append((*settings, " / ".join(sampling), *_paired_texts(first, second), labels))
    notes = footnotes([*PAIRED_METRICS, "output_tokens_per_s"])
    notes.append(
        "expected length, same drafts: difference of the expected acceptance lengths of the two methods, both on the "
        "drafts of the one named second. –: drafts are drawn differently, or only "
        f"{', '.join(EXPECTED_METHODS)} have it recorded."
    )
    drafted = [cell for cell in cells if not cell.is_baseline]
    notes += gap_notes(drafted, [*PAIRED_METRICS, *(f"expected_length_{item}" for item in EXPECTED_METHODS)])
    notes += [SAME_LAW, DIFFERENT_DRAFTS, *label_notes(cells)]
    return Table("Paired differences", tuple(header), tuple(rows), tuple(notes))


def _paired_texts(first: Cell, second: Cell) -> list[str]:
    texts = [_difference_text(first, second, name) for name in PAIRED_METRICS]
    expected: Estimate | None = expected_difference(first, second)
    if expected is None:
        texts.append(NONE)
    elif same_law(first, second):
        texts.append("0 (same law)")
    else:
        texts.append(format_estimate(expected, "length", signed=True))
    ratio = paired_ratio(first.estimates, second.estimates, "output_tokens_per_s")
    return [*texts, metric_text(ratio, "output_tokens_per_s", style="length")]
