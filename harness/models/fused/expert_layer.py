"""The feed-forward part of a layer with experts, run through the fused operations.

    route_tokens -> expert_gate_up -> expert_down -> sum_experts

Forwards of more tokens than MAX_TOKENS, prompts and rounds of many slots, run as transformers has them: the routing
kernel holds no more, and the more tokens, the less the products are bound by reading weights.

Shapes: N tokens, H hidden size.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from harness.models.fused.fuse import gate_and_up, packed
from harness.models.fused.operations import named_operations
from harness.models.fused.routing import MAX_TOKENS, Choice


def expert_feed_forward(
    moe: Any,
    # [N, H]
    states: Tensor,
    name: str,
) -> Tensor:
    """[N, H], without norm and residual.

    Args:
        moe: a Glm4MoeLiteMoE of transformers whose shared experts are packed.
        name: of the operations, triton or reference.
    """
    if len(states) > MAX_TOKENS:
        return moe(states[None])[0]
    operations, experts = named_operations(name), moe.experts
    shared, _ = packed(gate_and_up(moe.shared_experts))
    routing = operations.route_tokens(states, moe.gate.weight, moe.gate.e_score_correction_bias, Choice.of(moe.gate))
    activated = operations.expert_gate_up(states, experts.gate_up_proj, shared, routing)
    results = operations.expert_down(activated, experts.down_proj, moe.shared_experts.down_proj.weight, routing)
    return operations.sum_experts(results, routing)
