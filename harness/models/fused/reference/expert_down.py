"""Second product of experts. The specification of harness.models.fused.expert_down."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional

from harness.models.fused.routing import Routing


def expert_down(activated: Tensor, down: Tensor, shared: Tensor | None, routing: Routing) -> Tensor:
    """See harness.models.fused.expert_down. Waits for the device to learn how many tokens an expert has."""
    starts, width = routing.starts.tolist(), down.shape[2]
    rows = activated[: starts[-1] * width].view(-1, width)
    parts = [functional.linear(rows[begin:end], down[expert]) for expert, (begin, end) in enumerate(pairwise(starts))]
    if shared is not None:
        parts.append(functional.linear(activated[starts[-1] * width :].view(-1, shared.shape[1]), shared))
    return torch.cat(parts)
