"""How late the client's event loop is, measured beside every run: what a latency may hold of the client itself."""

from __future__ import annotations

import asyncio
import ctypes
import math
import os
import random
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

PERIOD_S = 0.01
MAX_SHARE = 0.1
"""Share of a latency that the client may take without a note."""
PERCENTILES = (50, 90, 99)
"""Of latencies, as tables tell them."""
_EDGES_S = np.geomspace(1e-5, 100.0, 815)
"""Upper edges of the bins in which delays are counted, 2 % apart."""
LATE = (
    "the client itself was late: at {} the delay of its event loop came to more than a tenth of the gap between two "
    "arrivals of a request, so latencies may be too long there; lower backend.max_concurrency or give the client a core"
)


@dataclass
class LoopDelay:
    """Delays of a task that asks to be woken about every 10 ms."""

    num_delays: NDArray[np.int64] = field(default_factory=lambda: np.zeros(len(_EDGES_S) + 1, dtype=np.int64))
    """Delays in each bin: memory does not grow with the length of a run."""
    longest_s: float = 0.0

    @asynccontextmanager
    async def measured(self) -> AsyncIterator[None]:
        """Measure while the body runs."""
        task = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _watch(self) -> None:
        wakes = random.Random(0)
        with _Alarm() as alarm:
            while True:
                # a fixed period could keep step with the server's and miss all its chunks
                due_s = time.perf_counter() + PERIOD_S * (0.5 + wakes.random())
                await alarm.at(due_s)
                self.add(time.perf_counter() - due_s)

    def add(self, delay_s: float) -> None:
        """Count a delay."""
        self.num_delays[np.searchsorted(_EDGES_S, delay_s)] += 1
        self.longest_s = max(self.longest_s, delay_s)

    def percentile_s(self, percent: float) -> float:
        """The upper edge of its bin, 2 % too long at most."""
        up_to = np.cumsum(self.num_delays)
        if not up_to[-1]:
            return 0.0
        place = np.searchsorted(up_to, percent / 100 * up_to[-1])
        return min(self.longest_s, float(np.append(_EDGES_S, math.inf)[place]))

    @property
    def reported(self) -> dict[str, float]:
        """For `BackendRun.reported`."""
        found = {f"client:loop_delay_p{percent}_s": self.percentile_s(percent) for percent in PERCENTILES}
        return found | {"client:loop_delay_max_s": self.longest_s}

    def note(self, latencies_s: Sequence[float]) -> str | None:
        """What readers of latencies must know; None where the client was fast enough.

        A percentile of the delay is held against the same one of the latencies: the longest delay of a hundred moves
        the p99 of gaps, and their median by nothing that counts.

        Args:
            latencies_s: the shortest that are reported: gaps between two arrivals of one request, of all requests.
        """
        if not len(latencies_s):
            return None
        found = zip(PERCENTILES, np.percentile(latencies_s, PERCENTILES), strict=True)
        late = [f"p{percent}" for percent, value in found if self.percentile_s(percent) > MAX_SHARE * value]
        return LATE.format(", ".join(late)) if late else None


class _Alarm:
    """Wakes a task at a given time in the way in which a chunk does: a file that gets ready.

    Timers of an event loop on Linux are rounded up to 1 ms by epoll, and so come later than any chunk. Elsewhere, where
    kqueue does not round, it is such a timer.
    """

    def __enter__(self) -> _Alarm:
        self._file = _LIBC.timerfd_create(_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC) if _LIBC is not None else -1
        if self._file >= 0:
            asyncio.get_running_loop().add_reader(self._file, self._ring)
        return self

    def __exit__(self, *_: object) -> None:
        if self._file >= 0:
            asyncio.get_running_loop().remove_reader(self._file)
            os.close(self._file)

    async def at(self, due_s: float) -> None:
        """Wait until `time.perf_counter()`, which is Linux's monotonic clock, shows this."""
        if self._file < 0:
            await asyncio.sleep(due_s - time.perf_counter())
            return
        assert _LIBC is not None
        self._rung = asyncio.get_running_loop().create_future()
        whole_s = int(due_s)
        # no interval, then the time
        when = (ctypes.c_long * 4)(0, 0, whole_s, int((due_s - whole_s) * 1e9))
        _LIBC.timerfd_settime(self._file, _ABSOLUTE, ctypes.byref(when), None)
        await self._rung

    def _ring(self) -> None:
        os.read(self._file, 8)
        if not self._rung.done():
            self._rung.set_result(None)


_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
_MONOTONIC, _ABSOLUTE = 1, 1
"""CLOCK_MONOTONIC; TFD_TIMER_ABSTIME (timerfd_create(2); its flags are those of open)."""
