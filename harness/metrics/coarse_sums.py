"""What can be summed of a cell whose rounds are not known: counts by request or block, and the arrivals of tokens.

A sum that is not known is nan, not 0. Shapes: R requests. This module knows records; it does not know which sums a
metric divides.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from harness.records.counts import PER_POSITION, DraftCounts, Knowledge, added
from harness.records.request import EXPECTED_METHODS
from harness.records.schema import CellRecord

Floats = NDArray[np.float64]
UNKNOWN = (
    *("num_rounds", "num_full_drafts", "num_accepted_in_full_drafts"),
    *("num_cut_eos", "num_cut_length", "num_cut_grammar"),
)
"""Sums that only rounds tell."""
NONE_RECORDED = ("num_expected_drafts", *(f"expected_accepted_{method}" for method in EXPECTED_METHODS))


def coarse_sums(cell: CellRecord) -> tuple[dict[str, Floats], dict[str, float], int]:
    """name -> [R], name -> total of the whole cell where that is all that is known, and the number of positions."""
    num_requests = len(cell.requests)
    sums = {
        "num_output_tokens": np.array([item.num_output_tokens for item in cell.requests], dtype=np.float64),
        "share_s": _shares_in_flight(cell),
    }
    sums |= {name: np.full(num_requests, np.nan) for name in UNKNOWN}
    sums |= {name: np.zeros(num_requests) for name in NONE_RECORDED}
    if cell.config["drafter"]["kind"] == "none":
        return sums | _table([DraftCounts()] * num_requests), {}, 0
    if cell.knowledge is Knowledge.requests:
        found = _table([item.counts or DraftCounts() for item in cell.requests])
        return sums | found, {}, _num_positions(found)
    unknown = {name: np.full(num_requests, np.nan) for name in _names(DraftCounts())}
    if cell.knowledge is Knowledge.arrivals:
        return sums | unknown, {}, 0
    found = _table([added(item.counts or DraftCounts() for item in cell.blocks)])
    unknown = {name: np.full(num_requests, np.nan) for name in found}
    return sums | unknown, {name: float(values[0]) for name, values in found.items()}, _num_positions(found)


def _table(counts: Sequence[DraftCounts]) -> dict[str, Floats]:
    """name -> [n] of some counts; those by position only if all of them have these."""
    names = _names(added(counts))
    return {name: np.array([_value(item, name) for item in counts], dtype=np.float64) for name in names}


def _names(counts: DraftCounts) -> list[str]:
    names = ["num_drafts", "num_draft_tokens", "num_accepted_tokens"]
    for name in PER_POSITION:
        names += [f"{name}_{position}" for position in range(1, 1 + len(getattr(counts, name) or ()))]
    return names


def _value(counts: DraftCounts, name: str) -> int:
    stem, _, position = name.rpartition("_")
    if stem not in PER_POSITION:
        return int(getattr(counts, name))
    by_position = getattr(counts, stem)
    return by_position[int(position) - 1] if int(position) <= len(by_position) else 0


def _num_positions(names: dict[str, Floats]) -> int:
    return sum(name.startswith(PER_POSITION[1]) for name in names)


def _shares_in_flight(cell: CellRecord) -> Floats:
    """[R] seconds of each request, each moment shared equally by the requests in flight."""
    start = np.array([item.submitted_s for item in cell.requests], dtype=np.float64)
    end = np.array([item.events[-1].arrival_s for item in cell.requests], dtype=np.float64)
    times = np.unique(np.concatenate([start, end]))
    if not len(times):
        return start
    begun, ended = (np.searchsorted(np.sort(each), times[:-1], side="right") for each in (start, end))
    passed = np.append(0.0, np.cumsum(np.diff(times) / np.maximum(begun - ended, 1)))
    shares: Floats = np.interp(end, times, passed) - np.interp(start, times, passed)
    return shares
