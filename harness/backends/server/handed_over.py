"""Sums over the answers that were handed over while their block was running, and dropped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from harness.backends.server.answer_records import Recorded
from harness.backends.server.draft_evidence import told_of_drafts
from harness.backends.server.load_result import LoadResult
from harness.records.counts import Knowledge


@dataclass
class HandedOver:
    """The sums that the end of a block needs."""

    num_requests: int = 0
    num_drafted: int = 0
    """Draft tokens that the answers report."""
    num_output_tokens: int = 0
    has_failures: bool = False
    """Whether an answer contradicted itself."""
    knowledge: Knowledge | None = None
    """How well the last ones are known; None while there are none."""
    reported: Mapping[str, float] = field(default_factory=dict)
    """Counts in the answers, by the engine's names."""
    told: Mapping[str, float] = field(default_factory=dict)
    """Draft tokens that the answers tell of, whatever the adapter reads (`draft_evidence`)."""

    def add(self, played: LoadResult, found: Recorded, reported: Mapping[str, float]) -> None:
        """Add answers, their records, and the counts in them."""
        self.num_requests += len(found.requests)
        self.num_drafted += found.num_drafted
        self.num_output_tokens += played.num_output_tokens
        self.has_failures |= bool(found.failures)
        self.knowledge = found.knowledge
        self.reported = self.reported_with(reported)
        self.told = self.told_with(played)

    def reported_with(self, reported: Mapping[str, float]) -> dict[str, float]:
        """The counts with those of other answers added."""
        return _sum(self.reported, reported)

    def told_with(self, played: LoadResult) -> dict[str, float]:
        """The same of the draft tokens that answers tell of."""
        return _sum(self.told, told_of_drafts([item.reply for item in played.answered]))


def _sum(first: Mapping[str, float], second: Mapping[str, float]) -> dict[str, float]:
    return {name: first.get(name, 0) + second.get(name, 0) for name in dict.fromkeys([*first, *second])}
