"""Sampling parameters that are the same for every row."""

from __future__ import annotations

import torch

from kernels.contract import Sampling


def equal_sampling(
    num_rows: int, temperature: float, top_k: int, top_p: float, min_p: float, device: torch.device | None = None
) -> Sampling:
    """Fields [num_rows]; 0, 1 and 0 turn top-k, top-p and min-p off."""
    return Sampling(
        temperature=torch.full((num_rows,), temperature, dtype=torch.float32, device=device),
        top_k=torch.full((num_rows,), top_k, dtype=torch.int64, device=device),
        top_p=torch.full((num_rows,), top_p, dtype=torch.float32, device=device),
        min_p=torch.full((num_rows,), min_p, dtype=torch.float32, device=device),
        truncates=top_k > 0 or top_p < 1 or min_p > 0,
    )
