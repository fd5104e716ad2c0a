"""What the supervisor needs of a launcher, and of a process that it has started."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from harness.backends.server.process import STOP_TIMEOUT_S
from harness.runner.channel import Channel

END_S = 30.0 + 2 * STOP_TIMEOUT_S
"""How long a worker may take to end, its server included."""
_SLICE_S = 0.2
"""How often `await_end` looks whether it must hurry."""


def await_end(has_ended_within: Callable[[float], bool], hurry: Callable[[], bool]) -> None:
    """Wait until something has ended, for `END_S` at most.

    Args:
        has_ended_within: waits for some seconds, and returns whether it has ended.
        hurry: returns whether to stop waiting.
    """
    began_s = time.monotonic()
    while not hurry() and time.monotonic() - began_s < END_S:
        if has_ended_within(_SLICE_S):
            return


class WorkerProcess(Protocol):
    """A process somewhere that runs `harness.runner.worker.work`, or waits to be started."""

    @property
    def channel(self) -> Channel | None:
        """None until it has begun."""
        ...

    def stop(self) -> None:
        """Ask it to end after the round under way."""
        ...

    def kill(self) -> None:
        """End it at once."""
        ...

    def end(self, hurry: Callable[[], bool]) -> None:
        """Wait, where that is possible, for the end of a worker that was asked to end or has ended; close its channel.

        Args:
            hurry: returns whether to stop waiting.
        """
        ...

    def has_ended(self) -> bool:
        """Whether it will not begin any more; asked before it has begun."""
        ...

    def ending(self) -> str:
        """How it ended, in words; asked when its channel is closed."""
        ...


class Launcher(Protocol):
    """Starts worker processes."""

    num_workers: int
    """At the same time."""
    devices_per_worker: int
    """Devices that a worker occupies."""
    doors: Sequence[int]
    """File descriptors of which one is ready when a worker has begun; none where it begins when it is started."""
    forgives: bool
    """Whether a worker may be lost for other reasons than what it ran, so that its cell gets a second try."""

    def start(self, place: int) -> WorkerProcess:
        """Start a worker.

        Args:
            place: 0 to `num_workers` - 1; that of a worker that has ended is used again.

        Raises:
            SettingsError: it cannot be started.
        """
        ...

    def begun(self) -> Sequence[WorkerProcess]:
        """Workers that have begun since the last call."""
        ...

    def close(self, hurry: Callable[[], bool]) -> None:
        """Start no more workers, and wait for what the end of this process would cut off.

        Args:
            hurry: returns whether to stop waiting.
        """
        ...
