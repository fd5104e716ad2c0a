"""Why a table has no number somewhere: the texts that stand below it, for those gaps only that it has.

This module knows metrics and why they may have no value; it does not know how a table is laid out.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan

from harness.analysis.cell import CellResult
from harness.analysis.definitions import REASONING_METRICS, TASK_ACCURACY, footnotes, is_measured_beside, metric
from harness.analysis.recorded_terms import Recorded
from harness.records.counts import Knowledge
from harness.report.bound_notes import bound_notes
from harness.report.cell_names import label_notes
from harness.report.number_format import NOT_AVAILABLE

OF_BASELINE = "–: the baseline drafts nothing, so it has no such value."
NO_BASELINE = (
    "the run has no baseline with the same settings (measurement.baseline=false, or it failed or was not finished)"
)
OTHER_SESSIONS = "cell and baseline share no prompt that was measured in one session (--fresh measures them together)"
FAILED = "the cell failed; the report says why"
LOST = "requests failed in the cell or its baseline (--retry-failed runs them again)"
TURNED_OFF = "it was not recorded (measurement.expected_acceptance=false)"
NOT_RECORDED = "it was not recorded for every draft that counts in full, or there is no such draft"
OF_CHAINS = "it is worked out for chains of drafts, not for trees"
NO_DRAFTS = "no draft of the cell counts as evidence for it"
NO_REASONING = "no end of reasoning was looked for, or nothing of that kind came up"
NOT_JUDGED = "its prompts have no known answers, or their tests were not run (measurement.run_code=false)"
NO_LIMITS = "no limit is set (measurement.max_ttft_ms, max_tpot_ms, max_e2e_ms)"
OF_SETTINGS = {"speedup": NO_BASELINE, "goodput_requests_per_s": NO_LIMITS, TASK_ACCURACY: NOT_JUDGED}
"""Metrics whose value hangs on a setting, and what is missing where they have none."""
NO_GAPS = "no request of the cell has two tokens"
UNKNOWN = {
    Knowledge.requests: "of each request only counts of its drafts are known, not its rounds",
    Knowledge.blocks: "only counts of all drafts together are known, neither by round nor by request",
    Knowledge.arrivals: "the server reports no drafts; only the arrivals of tokens are known",
}
NO_INTERVAL = "no interval: counts are known for all requests together, not by prompt"


def table_notes(cells: Sequence[CellResult], names: Sequence[str]) -> tuple[str, ...]:
    """All that stands below a table of these metrics: what they mean, why some have no value or exceed their bound, and
    what labels mean."""
    notes = (*missing_value_notes(cells, names), *bound_notes(cells, names))
    return (*footnotes(names), *notes, *label_notes(cells))


def masked_text(item: Recorded) -> str:
    """Of which drafts a cell has no terms, although it recorded them."""
    num_masked, num_kept = item.num_masked_drafts, len(item.terms.request)
    return (
        f"{num_masked} of {num_masked + num_kept} drafts that count in full have none: they were verified under a "
        "grammar's masks, for which terms are not defined"
    )


def missing_value_notes(cells: Sequence[CellResult], names: Sequence[str]) -> list[str]:
    """Why some of these metrics have no value in some of the cells; nothing where all have one.

    Args:
        cells: of a table.
        names: columns of metrics that it shows.
    """
    drafted = [cell for cell in cells if not cell.is_baseline]
    found: dict[str, list[str]] = {}
    for name in names:
        for cell in drafted:
            value, low, _ = cell.estimate(name)
            if isnan(value):
                found.setdefault(_why(cell, name), []).append(_column(name))
            elif isnan(low) and _is_counted_by_block(cell, name):
                found.setdefault(NO_INTERVAL, []).append(_column(name))
    notes = [f"{NOT_AVAILABLE} under {', '.join(dict.fromkeys(columns))}: {why}." for why, columns in found.items()]
    of_baseline = len(drafted) < len(cells) and any(metric(name).of_tokens for name in names)
    return [*([OF_BASELINE] if of_baseline else []), *notes]


def _is_counted_by_block(cell: CellResult, name: str) -> bool:
    return cell.record.knowledge is Knowledge.blocks and metric(name).of_tokens


def _why(cell: CellResult, name: str) -> str:
    if cell.record.has_failed:
        return FAILED
    if name in OF_SETTINGS:
        return _why_no_speedup(cell) if name == "speedup" else OF_SETTINGS[name]
    if cell.record.knowledge in UNKNOWN and metric(name).of_tokens:
        return UNKNOWN[cell.record.knowledge]
    if name in REASONING_METRICS:
        return NO_REASONING
    if is_measured_beside(name):
        return _why_not_beside(cell, name)
    return NO_DRAFTS if metric(name).of_tokens else NO_GAPS


def _why_no_speedup(cell: CellResult) -> str:
    if cell.baseline is None:
        return OF_SETTINGS["speedup"]
    return LOST if cell.has_failed_requests or cell.baseline.has_failed_requests else OTHER_SESSIONS


def _why_not_beside(cell: CellResult, name: str) -> str:
    if name.startswith("expected_length_") and cell["tree"]:
        return OF_CHAINS
    measurement = cell.record.config.get("measurement", {})
    return NOT_RECORDED if measurement.get("expected_acceptance", True) else TURNED_OFF


def _column(name: str) -> str:
    """What a table calls a metric, with one name for all methods of the expected length."""
    if "_per_pos_" in name:
        return f"{metric(name).label.partition(' at position ')[0]} by position"
    return "expected length" if name.startswith("expected_length_") else metric(name).label
