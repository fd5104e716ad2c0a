"""Tables of results: every cell, the methods of each setting side by side, and paired differences.

A table holds text; numbers with all their digits are in `results_frame` and `comparisons_frame`.
This module knows what to show; it does not know where it is written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from math import inf, isnan
from typing import Any

from harness.metrics.cell import Cell
from harness.metrics.comparison import SAME_LAW, Group, expected_difference, groups, method_name, method_rank, same_law
from harness.metrics.definitions import LABEL_NOTES, footnotes, metric
from harness.metrics.estimates import Estimate, paired_difference, paired_ratio
from harness.records.schema import EXPECTED_METHODS
from harness.report.missing_values import gap_notes
from harness.report.number_format import NOT_AVAILABLE, format_estimate, format_value, without_width_zero
from harness.report.table import Table
from harness.settings.acceptance_profiles import AcceptanceProfile
from harness.settings.guarantee import RANDOM_WEIGHTS
from harness.settings.models import Weights, checkpoint_name

NONE = "–"
MINUS = " − "
_TEXT_AND_NUMBER = re.compile(r"(\D*)(\d+(?:\.\d+)?)?")
DIFFERENT_DRAFTS = (
    "draft sampling differs: part of such a difference comes from how the drafts were drawn, not from verification."
)
PR_NAMES = (
    "In vLLM PR 35461 the column strict was the method called coupled here, and probabilistic as first merged was the "
    "one called pr35461."
)
EXPECTED_LENGTHS = tuple(f"expected_length_{method}" for method in EXPECTED_METHODS)
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


def varying(cells: Sequence[Cell], names: Sequence[str]) -> list[str]:
    """Those settings that are not the same in all cells."""
    return [name for name in names if len({cell[name] for cell in cells}) > 1]


CONTEXT = (
    "run",
    "target",
    "top_k",
    "top_p",
    "min_p",
    "max_new_tokens",
    "ignore_eos",
    "workload",
    "constraint",
    "prompt_tokens",
    "max_concurrency",
    "other_settings",
    "device",
    "dtype",
    "seed",
)
"""Settings that a table or title names only where they vary."""


def context_texts(cell: Cell, names: Sequence[str]) -> list[str]:
    """Settings of a cell as parts of a title; other_settings name themselves."""
    return [cell[name] if name == "other_settings" else f"{name} = {cell[name]}" for name in names if cell[name] != ""]


def target_name(cell: Cell) -> str:
    """The target, and whether its weights are random."""
    return cell["target"] + _weights_suffix(cell["target_weights"])


def _weights_suffix(weights: str) -> str:
    return f" ({RANDOM_WEIGHTS})" if weights == Weights.random.value else ""


def drafter_name(cell: Cell) -> str:
    """The drafter, with its checkpoint or shape where one was named, whether its weights are random, and an n-gram
    drafter's lengths."""
    if cell["drafter"] == "ngram":
        config = cell.record.config["drafter"]
        return f"ngram ({config['ngram_min']} to {config['ngram_max']})"
    path = checkpoint_name(cell["drafter_path"])
    return (f"{cell['drafter']} ({path})" if path else cell["drafter"]) + _weights_suffix(cell["drafter_weights"])


def column_name(cell: Cell) -> str:
    """A method as the header of a column: method, draft sampling, draft-logit cache, labels."""
    return f"{cell['verification']}, {drafts_text(cell)}" + label_suffix(cell)


def drafts_text(cell: Cell) -> str:
    """How drafts are drawn and kept, in words."""
    return f"{cell['draft_sampling']} drafts" + (f", {cell.cache_text}" if cell.cache_text else "")


def baseline_name(cell: Cell) -> str:
    """The baseline as the header of a column or row, with its labels."""
    return "baseline" + label_suffix(cell)


def label_notes(cells: Sequence[Cell]) -> list[str]:
    """What the labels of some cells mean, and where the acceptance profiles among their settings come from."""
    notes = [text for label, text in LABEL_NOTES.items() if any(label in cell["labels"] for cell in cells)]
    return list(dict.fromkeys([*notes, *(note for cell in cells for note in _profile_note(cell))]))


def _profile_note(cell: Cell) -> list[str]:
    """The rates of a cell's acceptance profile, as recorded, and their source where this version knows it."""
    config = cell.record.config["verification"]
    name = config.get("profile")
    if cell.is_baseline or name is None:
        return []
    sources = {item.value: item.source for item in AcceptanceProfile}
    rates = ", ".join(f"{rate:g}" for rate in config["synthetic_rates"])
    return [f"profile {name}: acceptance rates {rates} by position; {sources.get(name, 'source not known here')}."]


def label_suffix(cell: Cell) -> str:
    """The labels of a cell in brackets, or nothing."""
    return f" [{cell['labels']}]" if cell["labels"] else ""


def group_title(group: Group, cells: Sequence[Cell]) -> str:
    """What the cells of a group share, as far as the other cells differ in it."""
    first = group.first
    parts = [target_name(first), drafter_name(first), f"K = {first['num_speculative_tokens']}"]
    parts.append(f"T = {first['temperature']:g}")
    parts += context_texts(first, [name for name in varying(cells, CONTEXT) if name != "target"])
    return " · ".join(parts)


def summary_table(cells: Sequence[Cell]) -> Table:
    """One row per cell, baselines first within each temperature."""
    extra = varying(cells, CONTEXT)
    shown = ["acceptance_rate", "mean_acceptance_length", "full_draft_length"]
    shown += _recorded(EXPECTED_LENGTHS, cells)
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


def _recorded(names: Sequence[str], cells: Sequence[Cell]) -> list[str]:
    """The metrics without the expected lengths that no cell recorded, as in runs with expected_acceptance=false."""
    return [
        name
        for name in names
        if name not in EXPECTED_LENGTHS or not all(isnan(cell.estimate(name).value) for cell in cells)
    ]


def summary_order(cell: Cell) -> tuple:
    """Sorts cells for a summary: target, settings, temperature, baseline first, drafter, K, method."""
    context_key = tuple(_in_order(cell[name]) for name in CONTEXT)
    drafter = ("" if cell.is_baseline else drafter_name(cell), cell["num_speculative_tokens"])
    rank = (-1, 0, "") if cell.is_baseline else method_rank(cell)
    return cell["target"], cell["temperature"], context_key, drafter, rank


def _in_order(value: Any) -> tuple[float, tuple[tuple[str, float], ...]]:
    """Sorts numbers by their size, before names, and those in names by theirs."""
    if isinstance(value, (int, float)):
        return float(value), ()
    return inf, tuple((text, float(number or 0)) for text, number in _TEXT_AND_NUMBER.findall(str(value)))


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

    metrics = _recorded(PER_METHOD_METRICS, shown)
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


def estimate_text(cell: Cell, name: str) -> str:
    """A metric with its interval; the speedup of a baseline is 1 by definition."""
    if cell.is_baseline and name == "speedup":
        return "1"
    return metric_text(cell.estimate(name), name)


def metric_text(estimate: Estimate, name: str, *, style: str | None = None, signed: bool = False) -> str:
    """A value, difference or ratio of a metric with its interval; that of a time is n/a where it has no width."""
    item = metric(name)
    shown = estimate if item.of_tokens else without_width_zero(estimate)
    return format_estimate(shown, item.style if style is None else style, signed=signed)


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
