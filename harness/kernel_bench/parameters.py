"""Sampling parameters and random streams of a batch, the same for every request."""

from __future__ import annotations

import torch

from harness.kernel_bench.case import Truncation
from kernels.contract import Sampling, Streams

TOP_K, TOP_P, MIN_P = 50, 0.95, 0.05


def sampling_of(num_rows: int, temperature: float, truncation: Truncation, device: torch.device) -> Sampling:
    """Fields [num_rows]."""
    return Sampling.same_for_all(
        num_rows,
        temperature,
        top_k=TOP_K if truncation is Truncation.top_k else 0,
        top_p=TOP_P if truncation is Truncation.top_p else 1.0,
        min_p=MIN_P if truncation is Truncation.min_p else 0.0,
        device=device,
    )


def streams_of(num_rows: int, seed: int, device: torch.device) -> Streams:
    """Fields [num_rows]: a seed of its own for each request, anywhere in its text."""
    generator = torch.Generator(device).manual_seed(seed)
    return Streams(
        torch.randint(2**62, (num_rows,), generator=generator, device=device),
        torch.randint(8192, (num_rows,), generator=generator, device=device),
        torch.randint(4096, (num_rows,), generator=generator, device=device),
    )
