"""First product of experts and their activation. The specification of harness.models.fused.expert_gate_up."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional

from harness.models.fused.reference.gated_activation import silu_mul
from harness.models.fused.routing import Routing


def expert_gate_up(states: Tensor, gate_up: Tensor, shared: Tensor | None, routing: Routing) -> Tensor:
    """See harness.models.fused.expert_gate_up. Waits for the device to learn how many tokens an expert has."""
    starts = routing.starts.tolist()
    parts = [
        silu_mul(functional.linear(states[routing.tokens[begin:end]], gate_up[expert])).flatten()
        for expert, (begin, end) in enumerate(pairwise(starts))
    ]
    if shared is not None:
        parts.append(silu_mul(functional.linear(states, shared)).flatten())
    return torch.cat(parts)
