"""Weight and add the results of a token's experts. The specification of harness.models.fused.sum_experts."""

from __future__ import annotations

from torch import Tensor

from harness.models.fused.routing import Routing


def sum_experts(results: Tensor, routing: Routing) -> Tensor:
    """See harness.models.fused.sum_experts."""
    weighted = results[routing.places].float() * routing.weights[..., None]
    output = weighted.sum(1).to(results.dtype)
    num_pairs = routing.places.numel()
    return output if len(results) == num_pairs else output + results[num_pairs:]
