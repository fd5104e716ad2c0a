"""What a piece of work costs beside time: launches, and memory beyond its arguments. On a GPU only."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import torch

from harness.timing.clock import captured


def extra_memory(work: Callable[[], object]) -> int:
    """Most bytes that the allocator held during one call, beyond those held before it."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    kept = work()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated()
    del kept
    return peak - before


def num_launches(work: Callable[[], object]) -> int | None:
    """Kernels, copies and fills of one call, as nodes of its graph; None if they cannot be counted.

    Args:
        work: can be captured in a graph.
    """
    count = ctypes.c_size_t()
    try:
        graph = captured(work, keep_graph=True)
        driver = ctypes.CDLL("libcuda.so.1")
        code = driver.cuGraphGetNodes(ctypes.c_void_p(graph.raw_cuda_graph()), None, ctypes.byref(count))
    except (AttributeError, OSError, RuntimeError):
        return None
    return count.value if code == 0 else None
