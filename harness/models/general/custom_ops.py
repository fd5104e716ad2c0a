"""Fused operations for layers of transformers, as custom operations of torch, which its compiler passes through.

Layers that are not compiled call the functions themselves. Both take the operations of the tensors' device.

Shapes: R rows, T tokens of a row, Hq query heads, Hk key heads, D width of a head, S slots, C positions of a slot, N
tokens, H hidden size, E experts, k experts of a token, I width of an expert.
"""

from __future__ import annotations

import torch
from torch import Tensor

from harness.models.fused.clamped_gate import ClampedGate
from harness.models.fused.operations import operations_for

NAMESPACE = "rejection_lab_layers"


def slot_attention(
    # [R, T, Hq, D]
    queries: Tensor,
    # [S, Hk, C, D]
    keys: Tensor,
    # [S, Hk, C, D]
    values: Tensor,
    # [R] int64
    slots: Tensor,
    # [R] int64
    starts: Tensor,
    scaling: float,
    # [R] int64
    windows: Tensor | None = None,
    # [Hq]
    sinks: Tensor | None = None,
    softcap: float | None = None,
) -> Tensor:
    """[R, T, Hq * D], see harness.models.fused.slot_attention."""
    extras = {"windows": windows, "sinks": sinks, "softcap": softcap}
    return operations_for(queries.device).slot_attention(queries, keys, values, slots, starts, scaling, **extras)


def routed_experts(
    # [N, H]
    states: Tensor,
    # [N, k] int64
    chosen: Tensor,
    # [N, k]
    weights: Tensor,
    # [E, 2 I, H]
    gate_up: Tensor,
    # [E, H, I]
    down: Tensor,
    # [E, 2 I]
    gate_up_bias: Tensor | None = None,
    # [E, H]
    down_bias: Tensor | None = None,
    alpha: float | None = None,
    limit: float | None = None,
) -> Tensor:
    """[N, H]: each token's experts, weighted and added.

    alpha, limit: of a clamped gate (harness.models.fused.clamped_gate); None for silu(gate) * up.
    """
    operations = operations_for(states.device)
    clamped = None if alpha is None or limit is None else ClampedGate(alpha, limit)
    routing = operations.place_pairs(chosen, weights, len(gate_up))
    activated = operations.expert_gate_up(states, gate_up, None, routing, gate_up_bias, clamped)
    return operations.sum_experts(operations.expert_down(activated, down, None, routing, down_bias), routing)


_ATTENTION = torch.library.custom_op(
    f"{NAMESPACE}::slot_attention",
    slot_attention,
    mutates_args=(),
    schema=(
        "(Tensor queries, Tensor keys, Tensor values, Tensor slots, Tensor starts, float scaling, Tensor? windows, "
        "Tensor? sinks, float? softcap) -> Tensor"
    ),
)
_EXPERTS = torch.library.custom_op(
    f"{NAMESPACE}::routed_experts",
    routed_experts,
    mutates_args=(),
    schema=(
        "(Tensor states, Tensor chosen, Tensor weights, Tensor gate_up, Tensor down, Tensor? gate_up_bias, "
        "Tensor? down_bias, float? alpha, float? limit) -> Tensor"
    ),
)


@_ATTENTION.register_fake
def _(queries: Tensor, *_: object) -> Tensor:
    return queries.new_empty(*queries.shape[:2], queries.shape[2] * queries.shape[3])


@_EXPERTS.register_fake
def _(states: Tensor, *_: object) -> Tensor:
    return torch.empty_like(states)
