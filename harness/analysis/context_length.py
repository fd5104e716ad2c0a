"""Acceptance by the length of the context that a round began with, where rounds are known."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from harness.analysis.cell import CellResult
from harness.analysis.estimates import Estimates
from harness.analysis.sums import CellSums
from harness.records.counts import Knowledge

BOUNDS = (0, 256, 1024, 4096, 16384, 65536)
"""Tokens of prompt and output with which each class of lengths begins."""


class ContextClass(NamedTuple):
    """The rounds of a cell whose context has a length between two bounds."""

    first: int
    """Least number of tokens."""
    after: int | None
    """Number of tokens with which the next class begins; None for the last."""
    num_drafts: int
    estimates: Estimates
    """`acceptance_rate` and `full_draft_length` of these rounds."""


def by_context_length(cell: CellResult) -> list[ContextClass]:
    """The classes in which the cell drafted something; none where rounds are not known."""
    if cell.record.knowledge is not Knowledge.rounds:
        return []
    rows = []
    for request in cell.record.requests:
        length = request.num_prompt_tokens
        for item in request.rounds:
            drafted, accepted = item.num_draft_tokens, item.num_accepted_tokens
            is_full = drafted == item.num_proposed_tokens
            if drafted:
                rows.append((request.prompt_id, length, drafted, accepted, is_full, accepted * is_full))
            length += item.num_output_tokens
    lengths = np.array([row[1] for row in rows])
    place = np.searchsorted(BOUNDS, lengths, side="right") - 1
    found = []
    for index in np.unique(place):
        chosen = [row for row, of in zip(rows, place, strict=True) if of == index]
        after = BOUNDS[index + 1] if index + 1 < len(BOUNDS) else None
        found.append(ContextClass(BOUNDS[index], after, len(chosen), _estimates(cell, chosen)))
    return found


SUMS = ("num_draft_tokens", "num_accepted_tokens", "num_full_drafts", "num_accepted_in_full_drafts")


def _estimates(cell: CellResult, rows: list[tuple[str, int, int, int, bool, int]]) -> Estimates:
    prompt_ids, prompt = np.unique([row[0] for row in rows], return_inverse=True)
    table = np.array([row[2:] for row in rows], dtype=np.float64)
    columns = zip(SUMS, table.T, strict=True)
    sums = {name: np.bincount(prompt, weights=column).astype(np.float64) for name, column in columns}
    reduced = CellSums(tuple(map(str, prompt_ids)), sums, {}, 0)
    return Estimates(reduced, cell.estimates.num_resamples, cell.estimates.confidence)
