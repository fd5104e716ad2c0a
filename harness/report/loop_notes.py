"""What a report says of cells some of whose answers loop; what a loop is: `harness.analysis.loops`."""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan

from harness.analysis.cell import CellResult
from harness.analysis.definitions import metric
from harness.analysis.loops import MIN_TOKENS, num_not_judged
from harness.report.number_format import format_value

LOOPS = "‡"
"""Marks the acceptance of a cell some of whose answers loop."""
LEAST_SHARE = 0.01
"""Of looping answers, from which on a cell is marked; below it only its columns tell of them."""
LOOPS_NOTE = (
    f"{LOOPS}: answers of the cell loop, which inflates its acceptance, and with it its speed; the warnings give the "
    "acceptance without them, as do looping_answers and *_without_loops in cells.csv."
)
_INFLATED = ("acceptance_rate", "mean_acceptance_length", "full_draft_length", "tokens_per_forward")


def is_looping(cell: CellResult) -> bool:
    """Whether so many answers of a cell with a drafter loop that its acceptance is marked."""
    return not cell.is_baseline and cell.estimate("looping_answers").value >= LEAST_SHARE


def is_inflated(name: str, cell: CellResult) -> bool:
    """Whether a number of a cell is larger for its loops."""
    return name in _INFLATED and is_looping(cell)


def loop_text(cell: CellResult) -> str:
    """What share of the answers loops, and acceptance with and without them."""
    num_looping, total = (cell.estimates.total(name) for name in ("num_looping_answers", "num_judged_answers"))
    share = format_value(num_looping / total, "percent")
    which = "that can be judged " if any(num_not_judged(cell.record)) else ""
    text = f"{share} % of the answers {which}loop ({num_looping:.0f} of {total:.0f})"
    rates = [_text(cell, name, "percent") for name in ("acceptance_rate_without_loops", "acceptance_rate")]
    lengths = [_text(cell, name, "length") for name in ("full_draft_length_without_loops", "full_draft_length")]
    if not rates[0]:
        return f"{text}; acceptance without them is not known"
    text += f"; acceptance {rates[0]} % without them, {rates[1]} % with"
    name = metric("full_draft_length").label
    return f"{text}; {name} {lengths[0]} without, {lengths[1]} with" if lengths[0] else text


def not_judged_text(cells: Sequence[CellResult]) -> str:
    """How many answers of some cells cannot be judged, and why."""
    short, unknown = (sum(counts) for counts in zip(*(num_not_judged(cell.record) for cell in cells), strict=True))
    total = sum(len(cell.record.requests) for cell in cells)
    reasons = [f"{short} were cut below {MIN_TOKENS} tokens"] * bool(short)
    reasons += [f"the tokens of {unknown} are not known"] * bool(unknown)
    return f"{short + unknown} of {total} answers cannot be judged: {', '.join(reasons)}"


def _text(cell: CellResult, name: str, style: str) -> str:
    """The value of a metric; empty where there is none."""
    value = cell.estimate(name).value
    return "" if isnan(value) else format_value(value, style)
