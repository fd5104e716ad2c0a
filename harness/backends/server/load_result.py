"""The result of a load on a server: answers, failures and when requests were in flight."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from harness.backends.server.loop_delay import LoopDelay
from harness.backends.server.prompts import Question
from harness.backends.server.reply import Reply
from harness.records.counts import Arrival
from harness.records.in_flight import shared_clock
from harness.records.request import StopFound
from harness.records.schema import Failure


@dataclass(frozen=True)
class Answered:
    """A question with its whole answer."""

    question: Question
    reply: Reply
    submitted_s: float
    arrivals: tuple[Arrival, ...]
    """Of its tokens up to the end of a stop string."""
    stop: StopFound | None = None
    """That ended it."""

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The output tokens; empty where the server does not give them."""
        return self.reply.token_ids[: sum(event.num_output_tokens for event in self.arrivals)]

    @property
    def span(self) -> tuple[float, float]:
        """(begin, end), seconds on the records' clock."""
        return self.submitted_s, self.arrivals[-1].arrival_s


@dataclass
class LoadResult:
    """Answers and failures of some conversations, and the client's own times."""

    answered: list[Answered] = field(default_factory=list)
    """In the order they finished."""
    failures: list[Failure] = field(default_factory=list)
    num_skipped_turns: int = 0
    num_retried: int = 0
    wall_s: float = 0.0
    cpu_s: float = 0.0
    """Time of the client's own process on a core in it."""
    others: list[tuple[float, float]] = field(default_factory=list)
    """(begin, end) of other requests: those taken before, and those in flight beside these, which end now."""
    lag: LoopDelay = field(default_factory=LoopDelay)
    notes: dict[str, None] = field(default_factory=dict)

    @property
    def num_output_tokens(self) -> int:
        """Of the answers."""
        return sum(event.num_output_tokens for item in self.answered for event in item.arrivals)

    @property
    def clock(self) -> Callable[[ArrayLike], NDArray[np.float64]]:
        """The clock that shares every moment among the requests in flight."""
        spans = [*(item.span for item in self.answered), *self.others]
        return shared_clock([start for start, _ in spans], [end for _, end in spans])
