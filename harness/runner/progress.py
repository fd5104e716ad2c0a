"""Shows how far a run is and how much time is left: a live display on a terminal, occasional lines elsewhere.

Progress goes to standard error; results go to standard output. This module does not know what is being run.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from threading import Event, Thread
from typing import TYPE_CHECKING, TextIO

from harness.config.cli.command_line import say

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

SECONDS_BETWEEN_LINES = 10.0
PACE_SHARE = 0.1
"""Of the requests, from which on their pace counts, if no turn has ended before: the first ones may have compiled
steps, and those in flight together end together."""
UNKNOWN = "time left unknown until a turn is measured"


def progress_on(stream: TextIO | None = None) -> Progress:
    """The display that suits `stream` (default: standard error): live on a terminal, lines elsewhere."""
    stream = sys.stderr if stream is None else stream
    return LiveProgress(stream) if stream.isatty() else Progress(stream)


class Progress:
    """What a run reports while it works, as a plain line now and then, for log files and pipes."""

    is_stopping = False
    """Whether the run shall end now."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._clock = stream, clock
        self._total = self._before = self._done = self._num_tokens = 0
        self._started_s = self._last_line_s = clock()
        self._begun_s: float | None = None
        self._place = self._label = ""
        self._is_running = self._has_turn = False

    def start(self, num_requests_total: int) -> None:
        """The run begins; its cells have this many requests in all, those of earlier sessions among them."""
        self._total, self._before, self._done, self._num_tokens = num_requests_total, 0, 0, 0
        self._started_s = self._last_line_s = self._clock()
        self._begun_s, self._is_running, self._has_turn = None, True, False

    def cell(self, label: str, index: int, num_cells: int) -> None:
        """Work turns to cell `index` (0-based) of `num_cells`; a cell may take several turns."""
        self._place, self._label = f"{index + 1}/{num_cells}", label
        self._begun_s = self._clock() if self._begun_s is None else self._begun_s
        self._has_turn |= self._done > 0
        self._show()

    def advance(self, num_requests: int = 1, num_tokens: int = 0) -> None:
        """So many more requests are finished, and so many more tokens are out; less than 0 if they were lost."""
        self._done += num_requests
        self._num_tokens += num_tokens
        self._show()

    def at_stake(self, places: Sequence[int]) -> None:
        """The cells at these places cannot go on if something goes wrong from here on."""

    def round_ended(self) -> None:
        """A moment at which the run can end; raises if it shall."""

    def kept(self) -> None:
        """Finished requests are on disk, and no other process runs them again."""

    def done_before(self, num_requests: int) -> None:
        """Earlier sessions have finished so many more requests; less than 0 if they are lost."""
        self._before += num_requests
        self._show()

    def leave_out(self, num_requests: int) -> None:
        """So many requests will not be run, in no session."""
        self._total -= num_requests
        self._show()

    def tick(self) -> None:
        """Time has passed, whatever the run does meanwhile: a line is due now and then."""
        if self._is_running:
            self._show()

    @property
    def num_done(self) -> int:
        """Requests that this session has finished."""
        return self._done

    @property
    def num_left(self) -> int:
        """Requests that no session has finished."""
        return max(0, self._total - self._before - self._done)

    @property
    def loading_s(self) -> float:
        """From the start to the first turn: no request finishes in that time, and it does not come again."""
        return 0.0 if self._begun_s is None else self._begun_s - self._started_s

    @property
    def left_s(self) -> float | None:
        """Time that the rest takes at the pace so far; None before that is measured."""
        if not self._done or not (self._has_turn or self._done >= PACE_SHARE * (self._total - self._before)):
            return None
        return (self._clock() - self._started_s - self.loading_s) * self.num_left / self._done

    def note(self, text: str) -> None:
        """Something the user should know now."""
        print(text, file=self._stream, flush=True)

    def ready(self, text: str) -> None:
        """A cell is about to be measured for the first time; `text` says what getting it ready took."""
        self.note(f"{text}; measured from {self._clock() - self._started_s:.1f} s on")

    def finish(self) -> None:
        """The run is over, or was given up; nothing moves after this, and a second call does nothing."""
        if self._is_running and self._done + self.num_left:
            elapsed_s = self._clock() - self._started_s
            before = f" ({self._before} before)" if self._before else ""
            counts = f"{self._before + self._done}/{self._total} requests{before}"
            self.note(f"{counts}, {self._num_tokens} tokens in {duration(elapsed_s)}")
        self._is_running = False

    def _show(self) -> None:
        if self._clock() - self._last_line_s < SECONDS_BETWEEN_LINES:
            return
        self._last_line_s = self._clock()
        elapsed_s, left_s = self._last_line_s - self._started_s, self.left_s
        left = f", {UNKNOWN}" if left_s is None else f", about {duration(left_s)} left"
        cell = f"cell {self._place} {self._label}" if self._label else "loading"
        done = self._before + self._done
        percent = 100 * done / max(1, self._total)
        self.note(f"{done}/{self._total} requests ({percent:.0f} %), {duration(elapsed_s)}{left}: {cell}")


class LiveProgress(Progress):
    """One line that is redrawn in place: cell, bar, requests, tokens per second, time left."""

    _bar: RichProgress | None = None

    def start(self, num_requests_total: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        super().start(num_requests_total)
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("requests, {task.fields[tokens_per_s]:.0f} tokens/s,"),
            TextColumn("{task.fields[left]}"),
            console=Console(file=self._stream, highlight=False),
            transient=True,
        )
        self._bar.add_task("loading", total=num_requests_total, tokens_per_s=0.0, left="")
        self._bar.start()

    def note(self, text: str) -> None:
        if self._bar is None:
            super().note(text)
        else:
            self._bar.console.print(text, markup=False)

    def finish(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _show(self) -> None:
        if self._bar is not None:
            rate = self._num_tokens / max(1e-9, self._clock() - self._started_s - self.loading_s)
            text = f"[{self._place}] {self._label}" if self._label else "loading"
            left = "" if (left_s := self.left_s) is None else f"about {duration(left_s)} left"
            (task,) = self._bar.task_ids
            self._bar.update(
                task,
                total=self._total,
                completed=self._before + self._done,
                description=text,
                tokens_per_s=rate,
                left=left,
            )


@contextmanager
def repeated(call: Callable[[], None], every_s: float) -> Iterator[None]:
    """Call something every so many seconds until the block ends, in a thread of its own."""
    ended = Event()

    def repeat() -> None:
        while not ended.wait(every_s):
            call()

    thread = Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def telling(what: str) -> AbstractContextManager[None]:
    """Say now and then on standard error that something is still under way."""
    began_s = time.monotonic()
    return repeated(lambda: say(f"{what}: {duration(time.monotonic() - began_s)}"), SECONDS_BETWEEN_LINES)


def duration(seconds: float) -> str:
    """A duration for people: `48 s`, `3 min 05 s`, `2 h 07 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def device_time(seconds: float) -> str:
    """Time times devices for people: `3 min 05 s of device time`, from an hour on `2.1 device-hours`."""
    return f"{seconds / 3600:.1f} device-hours" if seconds >= 3600 else f"{duration(seconds)} of device time"
