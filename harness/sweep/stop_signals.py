"""Signals that stop a run, as something that a loop waits for beside other events; knows no run."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


class StoppedBySignal(KeyboardInterrupt):
    """A signal ended the run before its last cell."""

    def __init__(self, number: int, is_at_once: bool) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.is_key = number == signal.SIGINT
        self.is_at_once = is_at_once


@contextmanager
def stop_signals() -> Iterator[socket.socket]:
    """A socket that brings the numbers of signals, a byte each; those that stop a run interrupt nothing meanwhile."""
    receiver, sender = socket.socketpair()
    sender.setblocking(False)
    before = {number: signal.signal(number, lambda number, frame: None) for number in STOP_SIGNALS}
    fd_before = signal.set_wakeup_fd(sender.fileno())
    try:
        yield receiver
    finally:
        signal.set_wakeup_fd(fd_before)
        for number, handler in before.items():
            signal.signal(number, handler)
        receiver.close()
        sender.close()


@contextmanager
def ending_with(code: int) -> Iterator[None]:
    """SIGTERM and SIGUSR1 end the process with an exit code; SystemExit goes through what is under way."""

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(code)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGUSR1)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def blocked(number: signal.Signals) -> Iterator[None]:
    """A process that is started here never gets this signal, which a terminal sends to all of its processes."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
