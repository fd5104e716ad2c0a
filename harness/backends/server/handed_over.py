"""Sums over the answers of a block that were handed over while it went on, and are in memory no more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from harness.backends.server.answer_records import Recorded
from harness.backends.server.load_result import LoadResult
from harness.records.counts import Knowledge


@dataclass
class HandedOver:
    """What the end of a block needs of them."""

    num_requests: int = 0
    num_drafted: int = 0
    """Draft tokens that they tell of."""
    num_output_tokens: int = 0
    has_failures: bool = False
    """Whether an answer contradicted itself."""
    knowledge: Knowledge | None = None
    """What the last of them told of their drafts; None while there are none."""
    reported: Mapping[str, float] = field(default_factory=dict)
    """What they count, by the engine's names."""

    def add(self, played: LoadResult, found: Recorded, reported: Mapping[str, float]) -> None:
        """Add answers, their records, and what the answers count."""
        self.num_requests += len(found.requests)
        self.num_drafted += found.num_drafted
        self.num_output_tokens += played.num_output_tokens
        self.has_failures |= bool(found.failures)
        self.knowledge = found.knowledge
        self.reported = self.reported_with(reported)

    def reported_with(self, reported: Mapping[str, float]) -> dict[str, float]:
        """What they and other answers count together."""
        names = dict.fromkeys([*self.reported, *reported])
        return {name: self.reported.get(name, 0.0) + reported.get(name, 0.0) for name in names}
