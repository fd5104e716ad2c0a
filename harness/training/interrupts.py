"""Signals that end a training: at once, but after the step under way while it makes steps."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from harness.config.cli.command_line import say
from harness.config.cli.ending import handled
from harness.runner.stop_signals import STOP_SIGNALS, StoppedBySignal


@contextmanager
def raised_at_once() -> Iterator[None]:
    """Signals of a scheduler raise StoppedBySignal, as Ctrl-C raises KeyboardInterrupt."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise StoppedBySignal(number, True)

    with handled([number for number in STOP_SIGNALS if number != signal.SIGINT], stop):
        yield


class Held:
    """Signals that are noted while steps are made.

    Args:
        raises_again: whether Ctrl-C after the first signal raises, as for a process that works alone; among several
            the one that started them ends them.
    """

    def __init__(self, raises_again: bool) -> None:
        self._raises_again = raises_again
        self.number: int | None = None
        """Of the first that came; None before."""
        self._is_saving = False

    @contextmanager
    def caught(self) -> Iterator[None]:
        before = {number: signal.signal(number, self._came) for number in STOP_SIGNALS}
        try:
            yield
        finally:
            # one of several that was told to end may be told once more, by the process that started it, before it has
            is_ending = self.number is not None and not self._raises_again
            for number, handler in before.items():
                signal.signal(number, signal.SIG_IGN if is_ending else handler)

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Files are written, which no signal cuts."""
        self._is_saving = True
        try:
            yield
        finally:
            self._is_saving = False

    def _came(self, number: int, frame: FrameType | None) -> None:
        if self.number is None:
            self.number = number
            if self._raises_again:
                say("stopping after this step; Ctrl-C again ends without what was learnt since the last checkpoint")
        elif self._raises_again and number == signal.SIGINT and not self._is_saving:
            raise StoppedBySignal(number, True)
