"""What the operations of latent attention refuse, beside harness.models.fused.checks. Never looks at values."""

from __future__ import annotations

import torch
from torch import Tensor

from harness.models.fused.checks import check_tensor


def check_latents(keys: Tensor, dtype: torch.dtype) -> None:
    """Raises ValueError unless keys are [S, 1, C, L + P] of a type, the components of a position together."""
    if keys.dim() != 4 or keys.shape[1] != 1 or keys.stride(-1) != 1 or keys.dtype != dtype:
        raise ValueError(
            f"keys must be [S, 1, C, L + P] {dtype} with last stride 1, found {list(keys.shape)} {keys.dtype} with "
            f"strides {keys.stride()}"
        )


def check_table(table: Tensor, width: int, capacity: int) -> None:
    """Raises ValueError unless a table of rotations has a line for each position of a slot."""
    if table.dim() != 2 or table.shape[0] < capacity:
        raise ValueError(
            f"table must be [C', {width}] with a line for each of {capacity} positions, found {list(table.shape)}; "
            f"make it for the cache's capacity"
        )
    check_tensor("table", table, (table.shape[0], width), torch.float32)
