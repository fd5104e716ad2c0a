"""What a measured time is, and what it is compared with: repeats of one piece of work, and the machine.

This module does not know torch, so that records that hold times are read anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Timing:
    """Repeats of one piece of work, in microseconds."""

    median_us: float
    lower_us: float
    """First quartile."""
    upper_us: float
    """Third quartile."""
    min_us: float
    num_repeats: int
    in_graph: bool
    """Replayed as a CUDA graph; if not, launches from the host are part of the time."""


@dataclass(frozen=True)
class Machine:
    """What the numbers are measured against, in the same run."""

    device: str
    is_measurement: bool
    """False on a CPU, where the benchmark only shows that it runs."""
    flush: str
    """How the L2 was emptied before each repeat."""
    l2_bytes: int | None = None
    read_ways: dict[str, float] | None = None
    """Way of reading -> bytes per second."""
    empty_graph_us: float | None = None
    """Timed replay of a graph without a node."""
    one_kernel_us: float | None = None
    """The same of a graph with one kernel that writes four bytes."""

    @property
    def read_bandwidth(self) -> float | None:
        """The best of the ways, bytes per second."""
        return max(self.read_ways.values()) if self.read_ways else None
