"""What each request of a cell took: forwards of the target, of a batch its share of them, and seconds.

Shapes: R requests. Where rounds are not known, forwards are the fewest that the known counts allow. This module knows
records; it does not know what is compared.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from harness.records.counts import Knowledge, added
from harness.records.in_flight import shared_clock
from harness.records.schema import CellRecord

Floats = NDArray[np.float64]


def forwards(cell: CellRecord) -> Floats:
    """[R] forwards of the target, that of the prompt included: a round each, or the fewest that counts allow.

    A round emits one token beside the accepted ones at most. Counts of whole blocks are shared in proportion to tokens;
    a server that counts no drafts needed a forward for K + 1 tokens at least.
    """
    if cell.knowledge is Knowledge.rounds:
        return np.array([len(item.rounds) for item in cell.requests], dtype=np.float64)
    tokens = np.array([item.num_output_tokens for item in cell.requests], dtype=np.float64)
    if cell.config["drafter"]["kind"] == "none":
        return tokens
    if cell.knowledge is Knowledge.requests:
        accepted = [
            sum(each.num_accepted_tokens for each in item.rounds)
            if item.counts is None
            else item.counts.num_accepted_tokens
            for item in cell.requests
        ]
        return np.maximum(tokens - np.array(accepted, dtype=np.float64), np.minimum(tokens, 1))
    deepest = tokens / (1 + cell.config["drafting"]["num_speculative_tokens"])
    if cell.knowledge is Knowledge.arrivals or not tokens.sum():
        return deepest
    counted = added(item.counts for item in cell.blocks if item.counts is not None)
    share = 1 - counted.num_accepted_tokens / tokens.sum()
    return np.maximum(tokens * share, deepest)


def steps(cell: CellRecord) -> Floats:
    """[R] its share of the forwards of whole batches, each shared by the requests in flight.

    Forwards are taken to be even over the time that a request is in flight.
    """
    start, end = _flights(cell)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(end > start, shares_in_flight(cell) / (end - start), 1.0)
    return forwards(cell) * share


def shares_in_flight(cell: CellRecord) -> Floats:
    """[R] seconds of each request, each moment shared equally by the requests in flight."""
    start, end = _flights(cell)
    clock = shared_clock(start, end)
    shares: Floats = clock(end) - clock(start)
    return shares


def seconds(cell: CellRecord) -> Floats:
    """[R] what a request took of the steps that it was in, as the record has it; not yet scaled to any wall time."""
    if cell.knowledge is not Knowledge.rounds:
        return shares_in_flight(cell)
    return np.array([sum(each.share_s for each in item.rounds) for item in cell.requests], dtype=np.float64)


def _flights(cell: CellRecord) -> tuple[Floats, Floats]:
    """[R] when each request was admitted, and when its last token came."""
    start = np.array([item.submitted_s for item in cell.requests], dtype=np.float64)
    end = np.array([item.events[-1].arrival_s for item in cell.requests], dtype=np.float64)
    return start, end
