"""How one piece of work is timed: many repeats, each from a cold L2, median and spread.

On a GPU the work is captured once in a CUDA graph and replayed. Before each replay the L2 is emptied, outside of what
is timed, by writing or by reading a buffer several times its size; writing leaves lines behind that the timed work has
to write back, reading does not. All repeats are queued at once, so that the host is never waited for.
A CPU has a clock too, so that the whole path can be tested without a GPU; its times are no measurement.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from statistics import median, quantiles
from typing import Protocol

import torch

from harness.checks.timing.measured import Timing

Work = Callable[[], object]
NUM_WARMUP = 3
L2_SIZES = 4
"""Size of the buffer that empties the L2, in L2 sizes."""
MIN_FLUSH_BYTES = 2**28


class Clock(Protocol):
    """Times a piece of work."""

    def time(self, work: Work, in_graph: bool = True, is_cold: bool = True) -> Timing: ...


def timing_of(times_us: list[float], in_graph: bool) -> Timing:
    """Median and spread of the repeats, two or more."""
    lower, _, upper = quantiles(times_us, n=4, method="inclusive")
    return Timing(median(times_us), lower, upper, min(times_us), len(times_us), in_graph)


class WallClock:
    """Time on a CPU; says that the work runs, not how fast a GPU is."""

    def __init__(self, num_repeats: int) -> None:
        self.num_repeats = num_repeats

    def time(self, work: Work, in_graph: bool = False, is_cold: bool = False) -> Timing:
        """Run the work `num_repeats` times after one for warming up; a CPU has no graphs, and no L2 that is emptied."""
        work()
        times = []
        for _ in range(self.num_repeats):
            start = time.perf_counter()
            work()
            times.append(1e6 * (time.perf_counter() - start))
        return timing_of(times, in_graph=False)


class GraphClock:
    """Time on a GPU, by CUDA events around the replay of a graph."""

    def __init__(self, device: torch.device, num_repeats: int, flush: str) -> None:
        """Take the memory that empties the L2.

        Args:
            device: a CUDA device.
            num_repeats: timed repeats, 2 or more.
            flush: write or read.
        """
        self.num_repeats, self.flush_by = num_repeats, flush
        self.l2_bytes = int(torch.cuda.get_device_properties(device).L2_cache_size)
        size = max(MIN_FLUSH_BYTES, L2_SIZES * self.l2_bytes) // 4
        self._buffer = torch.randn(size, device=device)
        self._sum = torch.empty((), device=device)

    def flush(self) -> None:
        """Empty the L2 of everything that the work may have left or will read."""
        if self.flush_by == "write":
            self._buffer.fill_(1.0)
        else:
            torch.sum(self._buffer, dim=0, out=self._sum)

    def time(self, work: Work, in_graph: bool = True, is_cold: bool = True) -> Timing:
        """Time the work, captured in a graph or launched from the host, from a cold L2 or right after the last time."""
        if not in_graph:
            for _ in range(NUM_WARMUP):
                work()
            return timing_of(self._times_us(work, is_cold), in_graph=False)
        graph = captured(work)
        for _ in range(NUM_WARMUP):
            self.flush()
            graph.replay()
        return timing_of(self._times_us(graph.replay, is_cold), in_graph=True)

    def _times_us(self, work: Work, is_cold: bool) -> list[float]:
        events = [
            (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))
            for _ in range(self.num_repeats)
        ]
        torch.cuda.synchronize()
        for start, end in events:
            if is_cold:
                self.flush()
            start.record()
            work()
            end.record()
        torch.cuda.synchronize()
        return [1e3 * start.elapsed_time(end) for start, end in events]


def clock_for(device: torch.device, num_repeats: int, flush: str) -> Clock:
    """The clock of a device; see GraphClock."""
    return GraphClock(device, num_repeats, flush) if device.type == "cuda" else WallClock(num_repeats)


def captured(work: Work, keep_graph: bool = False) -> torch.cuda.CUDAGraph:
    """A graph of the work, after it was run on a side stream so that everything is compiled and allocated.

    Args:
        work: launches only, no synchronisation.
        keep_graph: also keep the graph as it was captured, so that its nodes can be counted.
    """
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(NUM_WARMUP):
            work()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph(keep_graph=keep_graph)
    with warnings.catch_warnings():
        # the empty graph is captured on purpose: its replay is what timing itself costs
        warnings.filterwarnings("ignore", message=".*CUDA Graph is empty.*")
        with torch.cuda.graph(graph):
            work()
    return graph
