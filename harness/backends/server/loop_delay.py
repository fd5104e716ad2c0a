"""How late the client's event loop is, measured beside every run: what a latency may hold of the client itself."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

PERIOD_S = 0.01
MAX_SHARE_OF_GAP = 0.1
"""Share of a latency that the client may take without a note."""
_EDGES_S = np.geomspace(1e-5, 100.0, 815)
"""Upper edges of the bins in which delays are counted, 2 % apart."""


@dataclass
class LoopDelay:
    """Delays of a task that asks to be woken every 10 ms."""

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
        while True:
            due = time.perf_counter() + PERIOD_S
            await asyncio.sleep(PERIOD_S)
            self.add(time.perf_counter() - due)

    def add(self, delay_s: float) -> None:
        """Count a delay."""
        self.num_delays[np.searchsorted(_EDGES_S, delay_s)] += 1
        self.longest_s = max(self.longest_s, delay_s)

    @property
    def p99_s(self) -> float:
        """The upper edge of its bin, 2 % too long at most."""
        up_to = np.cumsum(self.num_delays)
        if not up_to[-1]:
            return 0.0
        place = np.searchsorted(up_to, 0.99 * up_to[-1])
        return min(self.longest_s, float(np.append(_EDGES_S, math.inf)[place]))

    @property
    def reported(self) -> dict[str, float]:
        """For `BackendRun.reported`."""
        return {"client:loop_delay_p99_s": self.p99_s, "client:loop_delay_max_s": self.longest_s}

    def note(self, typical_gap_s: float) -> str | None:
        """What readers of latencies must know; None where the client was fast enough.

        Args:
            typical_gap_s: median time between two arrivals of a request.
        """
        if self.p99_s <= MAX_SHARE_OF_GAP * typical_gap_s:
            return None
        return (
            "the client itself was late: its event loop's delay (p99) came to more than a tenth of the median gap "
            "between arrivals, so latencies may be too long; lower backend.max_concurrency or give the client a core"
        )
