"""Apply the map of the values to attended latents. The specification of harness.models.fused.expand_values."""

from __future__ import annotations

import torch
from torch import Tensor


def expand_values(attended: Tensor, expansion: Tensor, value_width: int) -> Tensor:
    """See harness.models.fused.expand_values."""
    return torch.einsum("nhl,hvl->nhv", attended, expansion[:, -value_width:]).flatten(1)
