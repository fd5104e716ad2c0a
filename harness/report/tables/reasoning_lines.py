"""What became of the answers of cells that look for the end of reasoning, in one line per cell for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from harness.metrics.cell import Cell
from harness.report.number_format import format_estimate, format_value, without_width_zero
from harness.report.tables.methods import baseline_name
from harness.report.tables.reasoning import VALID

COUNTS = {"finished": "boundary_num_finished", "cut by length": "boundary_num_length_cut"}
NEVER_ENDED = "no request reached the end of its reasoning, so no answer was judged"
ADVICE = "; raise decoding.max_new_tokens"


def boundary_lines(cells: Sequence[Cell]) -> list[str]:
    """A line for each of the cells that looks for the end of reasoning: answers finished, cut, and valid."""
    return [_line(cell) for cell in cells if "boundary_num_judged" in cell.estimates.sums.sums]


def _line(cell: Cell) -> str:
    depth = "" if cell.is_baseline else f" at K = {cell['num_speculative_tokens']}"
    name = baseline_name(cell) if cell.is_baseline else f"{cell.method}{depth}"
    counts = [f"{label} {format_value(cell.estimates.total(key), 'count')}" for label, key in COUNTS.items()]
    valid = f"{VALID.label} {format_estimate(without_width_zero(cell.estimates.of(VALID)), VALID.style)}"
    advice = "" if cell.record.config["constraint"]["parser"] == "never" else ADVICE
    has_ended = any(item.num_reasoning_tokens is not None for item in cell.record.requests)
    notes = [] if has_ended else [NEVER_ENDED + advice]
    return f"answers, {name}: {'; '.join([', '.join([*counts, valid]), *notes])}"
