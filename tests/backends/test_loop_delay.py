"""The client's own lag: what is measured, and when it is said."""

import asyncio
import sys
import time

import pytest

from harness.backends.server.loop_delay import LoopDelay


class WithoutTimers(asyncio.SelectorEventLoop):
    def call_at(self, *_, **__):
        raise AssertionError("epoll rounds a timer of the event loop up to 1 ms")


def measured(busy_s):
    """The delays of a loop that is kept busy once for a time, until one delay is known."""
    lag = LoopDelay()

    async def run():
        async with lag.measured():
            await asyncio.sleep(0)
            end_s = time.perf_counter() + busy_s
            while time.perf_counter() < end_s:
                pass
            while not lag.num_delays.any():
                await asyncio.sleep(0)

    loop_factory = WithoutTimers if sys.platform == "linux" else None
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(run())
    return lag


def test_the_delay_of_a_busy_loop_is_measured():
    """Would catch a probe that is not woken, one that waits by a timer, and a delay that counts from its end."""
    lag = measured(busy_s=0.05)
    # it was to be woken after 15 ms at the latest
    assert lag.longest_s >= 0.035 and lag.reported["client:loop_delay_max_s"] == lag.longest_s


@pytest.mark.parametrize(
    ("delays_ms", "gaps_ms", "late_at"),
    [
        # one delay in fifty, beside gaps as rare that are long for the server's own reasons
        ([0.1] * 98 + [2.0] * 2, [5.0] * 90 + [30.0] * 10, ""),
        ([0.1] * 98 + [2.0] * 2, [5.0] * 100, "at p99 "),
        ([0.6] * 100, [5.0] * 90 + [30.0] * 10, "at p50 "),
        ([0.1] * 80 + [0.8] * 20, [5.0] * 95 + [30.0] * 5, "at p90 "),
        ([9.0] * 100, [], ""),
        ([], [5.0], ""),
    ],
    ids=["rare", "p99", "p50", "p90", "no gaps", "no delays"],
)
def test_a_delay_is_told_where_it_moves_a_percentile(delays_ms, gaps_ms, late_at):
    """Would catch the p99 of a delay that is held against the median gap, so that the note is always there."""
    lag = LoopDelay()
    for delay in delays_ms:
        lag.add(delay * 1e-3)
    note = lag.note([gap * 1e-3 for gap in gaps_ms])
    assert (note is not None and late_at in note) if late_at else note is None
