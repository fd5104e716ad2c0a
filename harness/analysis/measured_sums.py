"""Sums of what was measured of drafts while the clock stood: expected acceptance, and the bound of each position.

Shapes: N rounds. This module knows records; it does not know which sums a metric divides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from harness.records.request import EXPECTED_METHODS, RequestRecord

Floats = NDArray[np.float64]
Truths = NDArray[np.bool_]

NONE_MEASURED = ("num_expected_drafts", *(f"expected_accepted_{method}" for method in EXPECTED_METHODS))
"""Sums that are 0 where nothing was measured; those of bounds are missing there."""


def measured_values(
    requests: Sequence[RequestRecord], columns: Mapping[str, Floats], full: Truths
) -> dict[str, Floats]:
    """[N] of every name.

    Args:
        requests: their rounds are known.
        columns: the counts of their rounds, [N] each.
        full: [N] whether a round is a draft that counts in full.
    """
    return _expected_values(requests, full) | _bound_values(requests, columns)


def _expected_values(requests: Sequence[RequestRecord], full: Truths) -> dict[str, Floats]:
    """[N] expected accepted tokens of each method; none unless recorded for every draft that counts in full."""
    unknown = (np.nan,) * len(EXPECTED_METHODS)
    rows = [item.expected_accepted or unknown for request in requests for item in request.rounds]
    table = np.array(rows, dtype=np.float64).reshape(-1, len(EXPECTED_METHODS))
    known = full & np.isfinite(table).all(axis=1)
    if known.sum() != full.sum():
        # rounds verified under a grammar's masks have none: the rest would be a selection of the easy ones
        known[:] = False
    values = {"num_expected_drafts": known.astype(np.float64)}
    for name, column in zip(EXPECTED_METHODS, table.T, strict=True):
        values[f"expected_accepted_{name}"] = np.where(known, column, 0.0)
    return values


def _bound_values(requests: Sequence[RequestRecord], columns: Mapping[str, Floats]) -> dict[str, Floats]:
    """[N] bound of each position where all before it were accepted, 0 elsewhere, and their sum `bound_reached`; none
    unless known of every draft."""
    accepted = columns["num_accepted_tokens"]
    rounds = [item for request in requests for item in request.rounds]
    rows = [item.position_bounds or () for item in rounds]
    if any(len(row) != item.num_positions for row, item in zip(rows, rounds, strict=True)):
        return {}
    values, total = {}, np.zeros_like(accepted)
    for position in range(1, max(map(len, rows), default=0) + 1):
        bounds = np.array([row[position - 1] if len(row) >= position else 0.0 for row in rows], dtype=np.float64)
        reached = np.where(accepted >= position - 1, bounds, 0.0)
        values[f"bound_reached_per_pos_{position}"] = reached
        total += reached
    return values | {"bound_reached": total}
