"""Sums over the answers that were handed over while their block was running, and dropped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from harness.backends.server.answer_records import Recorded
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

    def add(self, played: LoadResult, found: Recorded, reported: Mapping[str, float]) -> None:
        """Add answers, their records, and the counts in them."""
        self.num_requests += len(found.requests)
        self.num_drafted += found.num_drafted
        self.num_output_tokens += played.num_output_tokens
        self.has_failures |= bool(found.failures)
        self.knowledge = found.knowledge
        self.reported = self.reported_with(reported)

    def reported_with(self, reported: Mapping[str, float]) -> dict[str, float]:
        """The counts with those of other answers added."""
        names = dict.fromkeys([*self.reported, *reported])
        return {name: self.reported.get(name, 0.0) + reported.get(name, 0.0) for name in names}
