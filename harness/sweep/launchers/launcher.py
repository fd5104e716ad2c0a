"""What the supervisor needs of a launcher, and of a process that it has started."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from harness.backends.server.process import STOP_TIMEOUT_S
from harness.sweep.channel import Channel

END_S = 30.0 + 2 * STOP_TIMEOUT_S
"""How long a worker may take to end, its server included."""


class WorkerProcess(Protocol):
    """A process somewhere that runs `harness.sweep.worker.work`, or waits to be started."""

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

    def end(self) -> None:
        """It has been told to end, or has ended: wait for it where that is possible, and send it nothing more."""
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

    def close(self) -> None:
        """No worker is started any more."""
        ...
