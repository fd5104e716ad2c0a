"""Counts of drafts, and arrivals of tokens, of servers that do not report every round.

This module knows no requests and no cells.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise, zip_longest
from operator import lt
from typing import NamedTuple

from harness.records import InconsistentRecordError
from harness.records.strict_json import Int64


class Knowledge(Enum):
    """The finest level at which a cell's drafts are known; every finer number is unknown, not zero."""

    rounds = "rounds"
    """Every round of every request."""
    requests = "requests"
    """Counts of each request."""
    blocks = "blocks"
    """Counts of each block: of all its requests together."""
    arrivals = "arrivals"
    """Only when how many tokens arrived."""


class Arrival(NamedTuple):
    """Tokens of a request that arrived together, where rounds are not known."""

    arrival_s: float
    """When they reached the client, in seconds since the measured phase of the cell began."""
    num_output_tokens: Int64


@dataclass(frozen=True, slots=True)
class DraftCounts:
    """Drafts of several rounds, in the definitions of `harness.analysis.columns`."""

    num_drafts: Int64 = 0
    num_draft_tokens: Int64 = 0
    num_accepted_tokens: Int64 = 0
    num_draft_tokens_per_pos: tuple[Int64, ...] | None = None
    """Drafts with a token at position 1, 2, ..; None where unknown."""
    num_accepted_tokens_per_pos: tuple[Int64, ...] | None = None
    """Drafts whose token at position 1, 2, .. was accepted; None where unknown."""

    def __post_init__(self) -> None:
        if not (
            0 <= self.num_accepted_tokens <= self.num_draft_tokens and 0 <= self.num_drafts <= self.num_draft_tokens
        ):
            raise InconsistentRecordError(
                "expected 0 <= accepted <= drafted and a token in every draft, found "
                f"{self.num_accepted_tokens} accepted, {self.num_draft_tokens} drafted, {self.num_drafts} drafts"
            )
        drafted, accepted = self.num_draft_tokens_per_pos, self.num_accepted_tokens_per_pos
        for total, by_position in ((self.num_draft_tokens, drafted), (self.num_accepted_tokens, accepted)):
            if by_position is not None and (
                sum(by_position) != total
                or any(later > earlier for earlier, later in pairwise(by_position))
                or min(by_position, default=0) < 0
            ):
                raise InconsistentRecordError(
                    "expected counts by position of 0 or more that do not increase and add up to "
                    f"{total}, found {by_position}"
                )
        if drafted and accepted and any(map(lt, drafted, accepted)):
            raise InconsistentRecordError(f"expected accepted <= drafted by position, found {accepted}, {drafted}")


def added(counts: Iterable[DraftCounts]) -> DraftCounts:
    """The sum; counts by position are known if they are in every part."""
    parts = list(counts)
    totals = [
        sum(getattr(item, name) for item in parts) for name in ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
    ]
    return DraftCounts(*totals, *(_added_by_position(parts, name) for name in PER_POSITION))


PER_POSITION = ("num_draft_tokens_per_pos", "num_accepted_tokens_per_pos")


def _added_by_position(parts: list[DraftCounts], name: str) -> tuple[int, ...] | None:
    rows = [getattr(item, name) for item in parts]
    if any(row is None for row in rows):
        return None
    return tuple(map(sum, zip_longest(*rows, fillvalue=0)))
