"""The fused operations of experts: the Triton kernels or their plain twins, as harness.models.fused.operations has it.

The kernels are imported only where they run, so that a machine without triton has the operations too.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Protocol

from torch import Tensor

from harness.models.fused.routing import Choice, Routing


class RouteTokens(Protocol):
    """See harness.models.fused.route_tokens."""

    def __call__(self, states: Tensor, weight: Tensor, bias: Tensor, choice: Choice) -> Routing: ...


class ExpertGateUp(Protocol):
    """See harness.models.fused.expert_gate_up."""

    def __call__(self, states: Tensor, gate_up: Tensor, shared: Tensor | None, routing: Routing) -> Tensor: ...


class ExpertDown(Protocol):
    """See harness.models.fused.expert_down."""

    def __call__(self, activated: Tensor, down: Tensor, shared: Tensor | None, routing: Routing) -> Tensor: ...


class SumExperts(Protocol):
    """See harness.models.fused.sum_experts."""

    def __call__(self, results: Tensor, routing: Routing) -> Tensor: ...


@dataclass(frozen=True)
class ExpertOperations:
    """One implementation of the operations of experts."""

    route_tokens: RouteTokens
    expert_gate_up: ExpertGateUp
    expert_down: ExpertDown
    sum_experts: SumExperts


@cache
def expert_operations(name: str) -> ExpertOperations:
    """name: of harness.models.fused.operations.Operations, triton or reference; the latter wait for the device."""
    if name == "triton":
        from harness.models.fused.expert_down import expert_down
        from harness.models.fused.expert_gate_up import expert_gate_up
        from harness.models.fused.route_tokens import route_tokens
        from harness.models.fused.sum_experts import sum_experts

        return ExpertOperations(route_tokens, expert_gate_up, expert_down, sum_experts)

    from harness.models.fused.reference import expert_down as down
    from harness.models.fused.reference import expert_gate_up as gate_up
    from harness.models.fused.reference import route_tokens as route
    from harness.models.fused.reference import sum_experts as add

    return ExpertOperations(route.route_tokens, gate_up.expert_gate_up, down.expert_down, add.sum_experts)
