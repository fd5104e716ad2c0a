"""The other ceiling: how fast a device multiplies matrices, by the best of a few sizes, timed like everything else."""

from __future__ import annotations

from functools import partial

import torch

from harness.checks.timing.clock import Clock

SIZES = ((4096, 4096, 4096), (8192, 4096, 8192), (8192, 8192, 8192))
"""Rows, inner length and columns; all fill a GPU, and the smaller ones end before it gets warm and slower."""
CPU_SIZES = ((256, 256, 256), (256, 512, 512))


def matrix_rates(clock: Clock, device: torch.device, dtype: torch.dtype) -> dict[str, float]:
    """Size of a product -> operations per second of its median time, a product and a sum being two.

    Args:
        clock: of the device.
        device: on a CPU the sizes are smaller, and the rates no measurement.
        dtype: of the factors and of the product; random normal numbers, because a GPU multiplies zeros faster.
    """
    found: dict[str, float] = {}
    for rows, inner, columns in CPU_SIZES if device.type == "cpu" else SIZES:
        left = torch.randn(rows, inner, device=device).to(dtype)
        right = torch.randn(inner, columns, device=device).to(dtype)
        product = torch.empty(rows, columns, device=device, dtype=dtype)
        timing = clock.time(partial(torch.mm, left, right, out=product))
        found[f"{rows} x {inner} x {columns}"] = 2 * rows * inner * columns / (1e-6 * timing.median_us)
        del left, right, product
    return found
