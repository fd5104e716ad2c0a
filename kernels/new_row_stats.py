"""Room for the statistics of rows, for `draw` to fill."""

from __future__ import annotations

import torch

from kernels.contract import RowStats


def new_row_stats(*size: int, device: torch.device | None = None) -> RowStats:
    """Fields [size], without a meaning until they are written."""
    return RowStats(
        maximum=torch.empty(size, dtype=torch.float32, device=device),
        normalizer=torch.empty(size, dtype=torch.float64, device=device),
        threshold=torch.empty(size, dtype=torch.float32, device=device),
    )
