"""Table of the concurrency: how many requests may be in flight before speculation stops paying.

This module knows what to show; it does not know where it is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from harness.analysis.cell import CellResult
from harness.analysis.comparison import Series, series_along
from harness.analysis.definitions import footnotes, metric
from harness.analysis.estimates import Estimate
from harness.analysis.speedup_bound import NOISE
from harness.report.cell_names import CONTEXT, column_name, label_notes, varying
from harness.report.entries import estimate_number, setting, settings_of
from harness.report.missing_values import missing_value_notes
from harness.report.table import NONE, Entry, Table

METRICS = ("full_draft_length", "output_tokens_per_s", "speedup")
PAYS, COSTS, UNDECIDED = "pays", "costs", "cannot be told"
VERDICTS = (
    f"{PAYS}: the interval of the speedup lies above 1; {COSTS}: below 1; {UNDECIDED}: it holds 1, there is none, or "
    f"the speedup is more than {NOISE:.0%} above the most that drafts can buy; what is less above it is taken from the "
    "interval. Intervals include the variation of the prompts, not that of the machine."
)


def concurrency_tables(cells: Sequence[CellResult]) -> list[Table]:
    """The speedup against the number of requests in flight; nothing where that does not vary.

    Args:
        cells: of any runs, baselines among them.
    """
    lines = series_along(cells, "backend", "max_concurrency")
    if not lines:
        return []
    extra = [name for name in varying(cells, CONTEXT) if name != "max_concurrency"]
    header = [*extra, "T", "drafter", "K", "verification", "requests in flight"]
    header += [metric(METRICS[0]).label, "baseline (tok/s)", "throughput (tok/s)", "speedup", "speculation"]
    rows = [_row(line, cell, extra) for line in lines for cell in line.cells]
    shown = [cell for line in lines for cell in line.cells]
    without = ["– under baseline: see speedup."] if any(cell.baseline is None for cell in shown) else []
    notes = (VERDICTS, *footnotes(METRICS), *missing_value_notes(shown, METRICS), *without, *label_notes(cells))
    return [Table("Where speculation pays", tuple(header), tuple(rows), notes)]


def _row(line: Series, cell: CellResult, extra: Sequence[str]) -> tuple[Entry, ...]:
    first = line.first
    settings = [*settings_of(first, extra), setting(first["num_speculative_tokens"])]
    settings += [column_name(cell), setting(cell["max_concurrency"])]
    baseline: Entry = NONE
    if cell.baseline is not None:
        number = estimate_number(cell.baseline, "output_tokens_per_s")
        baseline = replace(number, note="; ".join(text for text in (number.note, cell.baseline["labels"]) if text))
    shown: list[Entry] = [estimate_number(cell, "full_draft_length"), baseline]
    shown += [estimate_number(cell, name) for name in METRICS[1:]]
    return (*settings, *shown, UNDECIDED if cell.is_impossible else verdict(_without_noise(cell)))


def _without_noise(cell: CellResult) -> Estimate:
    """The speedup, whose interval begins lower by what is above its bound: noise, which may have raised it all."""
    excess = max(0.0, cell.speedup.value - cell.speedup_bound)
    return cell.speedup._replace(low=cell.speedup.low - excess)


def verdict(speedup: Estimate) -> str:
    """Whether speculation pays at this speedup."""
    if speedup.low > 1:
        return PAYS
    return COSTS if speedup.high < 1 else UNDECIDED
