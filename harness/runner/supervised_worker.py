"""A worker as its supervisor knows it: its process, what it works on, and where the next one starts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from harness.records.schema import Failure
from harness.runner.launchers.launcher import WorkerProcess
from harness.runner.task import Task

MAX_STARTS = 3
"""Failed starts in a row after which a place gets no more workers."""


@dataclass
class SupervisedWorker:
    """A process and what it works on."""

    place: int
    """Of the launcher."""
    process: WorkerProcess
    heard_s: float
    """When the last event came."""
    task: Task | None = None
    """None before it has begun."""
    at_stake: Sequence[int] = ()
    begun_s: float | None = None
    has_kept: bool = False
    """Whether something that it did is on disk."""
    label: str = ""
    """The cell under way, in words."""
    failure: Failure | None = None
    """Why it must end, if that is known."""

    def send(self, name: str, *values: Any) -> None:
        """Send a message; if the process died, the end of its events says so."""
        if self.process.channel is not None:
            with suppress(OSError):
                self.process.channel.send(name, *values)


class Places:
    """The places of a launcher, with the number of failed starts at each; knows no workers."""

    def __init__(self, num_places: int) -> None:
        self._num_places = num_places
        self._failed_starts: Counter[int] = Counter()

    def failed(self, place: int) -> None:
        """A worker there could not begin, or could run nothing."""
        self._failed_starts[place] += 1

    def worked(self, place: int) -> None:
        """A worker there has kept something."""
        self._failed_starts[place] = 0

    def best(self, taken: Collection[int]) -> int | None:
        """The free place with the fewest failed starts; None if none is free or all have failed MAX_STARTS times."""
        free = [place for place in range(self._num_places) if place not in taken]
        good = [place for place in free if self._failed_starts[place] < MAX_STARTS]
        return min(good, key=self._failed_starts.__getitem__, default=None)
