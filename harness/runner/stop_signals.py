"""Signals that stop a run, as an event that a loop waits for beside others; does not know what a run is."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from harness.config.cli.ending import handled

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


class StoppedBySignal(KeyboardInterrupt):
    """A signal ended the run before its last cell."""

    def __init__(self, number: int, is_at_once: bool) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.is_key = number == signal.SIGINT
        self.is_at_once = is_at_once


class StopSignals:
    """Signals that stop a run; while they are caught they raise no exception."""

    def __init__(self) -> None:
        self.first: int | None = None
        """Number of the first one; None before."""
        self.is_at_once = False
        """Whether Ctrl-C came after it, so that nothing is waited for."""

    @contextmanager
    def caught(self) -> Iterator[None]:
        """Catch them.

        Raises:
            StoppedBySignal: at the end, if one came.
        """
        self._receiver, sender = socket.socketpair()
        sender.setblocking(False)
        fd_before = signal.set_wakeup_fd(sender.fileno())
        try:
            with handled(STOP_SIGNALS, self._came):
                yield
        finally:
            signal.set_wakeup_fd(fd_before)
            self._receiver.close()
            sender.close()
        if self.first is not None:
            raise StoppedBySignal(self.first, self.is_at_once)

    def _came(self, number: int, frame: FrameType | None) -> None:
        if self.first is None:
            self.first = number
        else:
            self.is_at_once |= number == signal.SIGINT

    def fileno(self) -> int:
        """Ready to be read when a signal has come."""
        return self._receiver.fileno()

    def take(self) -> None:
        """Wait until a signal has come."""
        self._receiver.recv(1)

    def hurry(self) -> bool:
        """`is_at_once`, for what waits for something else."""
        return self.is_at_once


@contextmanager
def blocked(number: signal.Signals) -> Iterator[None]:
    """A process that is started here never gets this signal, which a terminal sends to all of its processes."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
