"""The work on one group: what its workers have done and failed at so far, and the message to the next worker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.records.schema import Failure
from harness.runner.channel import failure_message
from harness.runner.groups import Group


@dataclass
class Task:
    """A group, with what happened to it so far."""

    index: int
    """Of the group."""
    group: Group
    failures: dict[int, Failure] = field(default_factory=dict)
    """Of cells that a worker died of, by place."""
    finished: set[int] = field(default_factory=set)
    """Places of the cells whose record is there."""
    num_told: int = 0
    num_left_out: int = 0
    num_before: int = 0
    """Requests that the display has counted, and that another worker will report again."""
    is_done: bool = False
    """Whether another worker would find nothing to do."""
    _tried_again: set[int] = field(default_factory=set)
    """Places of the cells that a worker was lost with, through no fault of theirs as it seemed, since something was
    kept."""

    @property
    def num_untold(self) -> int:
        """Requests that the display still waits for."""
        return self.num_requests - self.num_told - self.num_left_out - self.num_before

    @property
    def num_requests(self) -> int:
        """Of its cells, in all sessions."""
        return len(self.group.cells) * self.group.num_requests_per_cell

    @property
    def places(self) -> range:
        return range(self.group.first_place, self.group.first_place + len(self.group.cells))

    def lose(self, at_stake: Sequence[int], failure: Failure, is_forgiven: bool) -> None:
        """A worker was lost.

        Args:
            at_stake: places of the cells that it worked on.
            failure: what these cells have failed with,
            is_forgiven: unless they may be tried again, and have not been since something of the group was kept.
        """
        left = [place for place in self.places if place not in self.finished | self.failures.keys()]
        self.is_done = not left
        # it may have died between two cells; with nothing to blame it could die there again and again
        blamed = {place for place in at_stake if place in left} or set(left)
        failed = blamed & self._tried_again if is_forgiven else blamed
        self._tried_again |= blamed - failed
        self.failures |= dict.fromkeys(sorted(failed), failure)

    def kept(self) -> None:
        """Something of the group was kept: its cells may be tried again once more."""
        self._tried_again.clear()

    def hand_over(self) -> tuple[int, list[tuple[int, dict[str, Any]]], list[int]]:
        """The message to the next worker: the group's index, its failures by place, and the finished places."""
        failures = [(place, failure_message(failure)) for place, failure in self.failures.items()]
        return self.index, failures, sorted(self.finished)
