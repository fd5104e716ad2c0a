"""Which depths of a table a cell never took, because it never decoded as many requests at a time, or as few.

The table gives the draft tokens of a round from each number of decoding requests on (harness/config/depth.py).
"""

from __future__ import annotations

from typing import NamedTuple

from harness.analysis.cell import CellResult
from harness.analysis.decode_steps import decode_rounds
from harness.config.depth import PLANNER, DepthTable, read_depths
from harness.records.counts import Knowledge


class NeverTaken(NamedTuple):
    """Of one cell."""

    entries: DepthTable
    """(decoding requests, draft tokens of a round from that number on); empty where all were taken."""
    fewest: int
    most: int
    """Requests that decoded in one step."""


def never_taken(cell: CellResult) -> NeverTaken | None:
    """The entries that no step of a cell came to; None where it has no table, or no step in which requests decode."""
    text = cell.record.config["drafting"].get("depth")
    if cell.is_baseline or text in (None, PLANNER) or cell.record.knowledge is not Knowledge.rounds:
        return None
    prompts = {request.prompt_id: row for row, request in enumerate(cell.record.requests)}
    sizes = {int(size) for size in decode_rounds(cell.record.requests, prompts).size}
    if not sizes:
        return None
    table = read_depths(text, cell["num_speculative_tokens"])
    taken = {max(first for first, _ in table if first <= size) for size in sizes}
    return NeverTaken(tuple(entry for entry in table if entry[0] not in taken), min(sizes), max(sizes))
