"""The table of repeats: cells that differ in their seed only, each metric as the mean over them with its interval
or, of few seeds, with their values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from harness.analysis.cell import CellResult
from harness.analysis.definitions import metric
from harness.analysis.intervals import MIN_REPEATS
from harness.analysis.repeats import mean_over_repeats, repeats, values_of_repeats
from harness.report.cell_names import CONTEXT, label_suffix, summary_order, varying
from harness.report.entries import metric_number, setting, settings_of
from harness.report.number_format import NOT_AVAILABLE, Number
from harness.report.table import NONE, Entry, Table

METRICS = ("acceptance_rate", "mean_acceptance_length", "output_tokens_per_s", "speedup")
MEANS = (
    f"Each number is the mean over the seeds. From {MIN_REPEATS} seeds on it has an interval in brackets: Student's t, "
    "from the repeats alone, on a scale on which it stays within the range of the metric. With fewer, the values "
    "themselves stand in braces, in the order of the seeds. Both hold all that changes from repeat to repeat, the "
    "machine included; the interval of a single cell holds prompts only."
)


def repeats_tables(cells: Sequence[CellResult]) -> list[Table]:
    """One table with a row for each cell that was run with several seeds; none where no cell was."""
    found = repeats(sorted(cells, key=summary_order))
    if not found:
        return []
    extra = [name for name in varying(cells, CONTEXT) if name != "seed"]
    header = [*extra, "T", "drafter", "K", "verification", "drafts", "seeds"]
    rows = [_row(group, extra) for group in found]
    notes = (MEANS, *(f"{metric(name).label}: {metric(name).definition}" for name in METRICS))
    return [Table("Repeats over seeds", (*header, *(metric(name).label for name in METRICS)), tuple(rows), notes)]


def _row(group: Sequence[CellResult], extra: Sequence[str]) -> tuple[Entry, ...]:
    cell, seeds = group[0], ", ".join(sorted({str(item["seed"]) for item in group}, key=int))
    if cell.is_baseline:
        is_known = not any(item.has_failed_requests for item in group)
        speedup: Entry = Number(1, style="plain") if is_known else NOT_AVAILABLE
        shown = (seeds, NONE, NONE, _number(group, "output_tokens_per_s"), speedup)
        return (*settings_of(cell, extra), NONE, f"{NONE}{label_suffix(*group)}", NONE, *shown)
    settings = [setting(cell["num_speculative_tokens"]), cell["verification"] + label_suffix(*group), cell.drafts]
    return (*settings_of(cell, extra), *settings, seeds, *(_number(group, name) for name in METRICS))


def _number(group: Sequence[CellResult], name: str) -> Number:
    """The mean with its interval, or with the values of few seeds."""
    found = metric_number(mean_over_repeats(group, name), name, cells=group)
    if found.is_missing or len(group) >= MIN_REPEATS:
        return found
    return replace(found, low=None, high=None, values=values_of_repeats(group, name))
