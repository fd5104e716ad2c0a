"""How late the client's event loop is, measured beside every run: what a latency may hold of the client itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import numpy as np

PERIOD_S = 0.01
MAX_SHARE_OF_GAP = 0.1
"""Share of a latency that the client may take without a note."""


@dataclass
class LoopDelay:
    """Delays of a task that asks to be woken every 10 ms."""

    delays_s: list[float] = field(default_factory=list)

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
            self.delays_s.append(time.perf_counter() - due)

    @property
    def p99_s(self) -> float:
        return float(np.quantile(self.delays_s, 0.99)) if self.delays_s else 0.0

    @property
    def reported(self) -> dict[str, float]:
        """For `BackendRun.reported`."""
        return {"client:loop_delay_p99_s": self.p99_s, "client:loop_delay_max_s": max(self.delays_s, default=0.0)}

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
