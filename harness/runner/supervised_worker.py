"""A worker as its supervisor knows it: its process, and what it works on."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from harness.records.schema import Failure
from harness.runner.launchers.launcher import WorkerProcess
from harness.runner.task import Task


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
