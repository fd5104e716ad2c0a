"""The ceiling: how fast this GPU reads memory, by the best of a few plain ways, timed as everything else is."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from harness.checks.timing.clock import Clock, GraphClock
from harness.checks.timing.measured import Machine

SIZES = (2**29, 2**31)
"""Bytes read; the larger hides the overhead of timing."""
KERNELS = ((4096, 4), (8192, 8), (16384, 8))
"""(elements of a program, its warps)."""


def machine_of(clock: Clock, device: torch.device) -> Machine:
    """What every time of this clock is to be compared with; nothing on a CPU, whose times are no measurement."""
    if not isinstance(clock, GraphClock):
        return Machine(device.type, is_measurement=False, flush="none")
    one = torch.empty(1, device=device)
    return Machine(
        device=torch.cuda.get_device_name(device),
        is_measurement=True,
        flush=clock.flush_by,
        l2_bytes=clock.l2_bytes,
        read_ways=read_bandwidths(clock, device),
        empty_graph_us=clock.time(lambda: None).median_us,
        one_kernel_us=clock.time(lambda: one.fill_(1.0)).median_us,
    )


def read_bandwidths(clock: GraphClock, device: torch.device) -> dict[str, float]:
    """Way of reading -> bytes per second of its median time."""
    from harness.checks.timing.read_kernel import read

    found: dict[str, float] = {}
    for size in SIZES:
        values = torch.randn(size // 4, device=device)
        sums = torch.empty(size // 4 // min(block for block, _ in KERNELS), device=device)
        ways: dict[str, Callable[[], object]] = {
            f"triton {block} x {warps} warps": partial(read, values, sums, block, warps) for block, warps in KERNELS
        }
        ways["torch.sum"] = partial(torch.sum, values)
        ways["torch.amax"] = partial(torch.amax, values)
        for name, work in ways.items():
            found[f"{name}, {size // 2**20} MiB"] = size / (1e-6 * clock.time(work).median_us)
        del values
    return found
