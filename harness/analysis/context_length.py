"""Acceptance and speed by the length of the context that a round began with, where rounds are known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from harness.analysis.cell import CellResult
from harness.analysis.estimates import Estimates
from harness.analysis.prompt_part import PromptPart
from harness.analysis.sums import CellSums, Floats
from harness.records.counts import Knowledge

BOUNDS = (0, 256, 1024, 4096, 16384, 65536)
"""Tokens of prompt and output with which each class of lengths begins."""


def by_context_length(cell: CellResult) -> dict[int, PromptPart]:
    """The classes in which the cell had rounds, by their least length; none where rounds are not known.

    Their metrics are `acceptance_rate`, `full_draft_length` and `output_tokens_per_s`; their drafts are counted.
    """
    if cell.record.knowledge is not Knowledge.rounds:
        return {}
    rows = []
    for request in cell.record.requests:
        length = request.num_prompt_tokens
        for item in request.rounds:
            drafted, accepted = item.num_draft_tokens, item.num_accepted_tokens
            is_full = drafted > 0 and drafted == item.num_proposed_tokens
            counts = drafted > 0, drafted, accepted, is_full, accepted * is_full, item.num_output_tokens, item.share_s
            rows.append((request.prompt_id, length, counts))
            length += item.num_output_tokens
    if not rows:
        # of a cell that failed
        return {}
    ids, lengths = np.array([row[0] for row in rows]), np.array([row[1] for row in rows])
    table = np.array([row[2] for row in rows], dtype=np.float64)
    table[:, -1] *= _seconds_per_share(cell, ids, table[:, -1])
    place = np.searchsorted(BOUNDS, lengths, side="right") - 1
    found = {}
    for index in np.unique(place):
        chosen = place == index
        is_last = index + 1 == len(BOUNDS)
        label = f"{BOUNDS[index]} and more" if is_last else f"{BOUNDS[index]} to {BOUNDS[index + 1] - 1}"
        num_drafts = int(table[chosen, 0].sum())
        estimates = _estimates(cell, ids[chosen], table[chosen])
        found[BOUNDS[index]] = PromptPart(label, num_drafts, num_drafts, estimates)
    return found


SUMS = (
    *("num_drafts", "num_draft_tokens", "num_accepted_tokens", "num_full_drafts", "num_accepted_in_full_drafts"),
    *("num_output_tokens", "time_s"),
)


def _seconds_per_share(cell: CellResult, ids: NDArray[np.str_], share_s: Floats) -> Floats:
    """[N] what a round's share of a step is multiplied by, so that all of a prompt's add up to its time."""
    sums = cell.estimates.sums
    row = np.searchsorted(sums.prompt_ids, ids)
    total = np.bincount(row, weights=share_s, minlength=len(sums.prompt_ids))
    with np.errstate(divide="ignore", invalid="ignore"):
        return (sums.sums["time_s"] / total)[row]


def _estimates(cell: CellResult, ids: NDArray[np.str_], table: Floats) -> Estimates:
    prompt_ids, prompt = np.unique(ids, return_inverse=True)
    columns = zip(SUMS, table.T, strict=True)
    sums = {name: np.bincount(prompt, weights=column).astype(np.float64) for name, column in columns}
    known = cell.estimates.sums
    names = tuple(map(str, prompt_ids))
    reduced = CellSums(names, sums, {}, 0, sessions=tuple(known.session_of(name) for name in names))
    reduced = replace(reduced, num_failed_requests=known.num_failed_requests)
    return Estimates(reduced, cell.estimates.num_resamples, cell.estimates.confidence)
