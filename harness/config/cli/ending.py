"""How a command ends: its exit code, and signals of a scheduler as one of these.

Imports nothing of the project, so that signals are heeded before anything that takes time is imported.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType

SUCCESS, FAILED, WRONG_SETTINGS, REQUEUE, INTERRUPTED = 0, 1, 2, 75, 130
"""Exit codes of every command: done; the work failed, or its verdict is no; wrong arguments; ended by SIGTERM or
SIGUSR1, to be started again (EX_TEMPFAIL of sysexits.h); interrupted by a key."""


@contextmanager
def handled(numbers: Iterable[signal.Signals], handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Inside, signals call a handler; afterwards those that were there before."""
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, each in before.items():
            signal.signal(number, each)


@contextmanager
def to_be_queued_again() -> Iterator[None]:
    """SIGTERM and SIGUSR1 raise SystemExit with REQUEUE, which goes through what is under way; one line says so."""
    came: list[int] = []

    def end(number: int, frame: FrameType | None) -> None:
        came.append(number)
        raise SystemExit(REQUEUE)

    try:
        with handled((signal.SIGTERM, signal.SIGUSR1), end):
            yield
    finally:
        if came:
            print(f"interrupted by {signal.Signals(came[0]).name}: the same command goes on", file=sys.stderr)
