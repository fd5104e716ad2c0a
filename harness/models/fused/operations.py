"""The fused operations by name of their implementation: the Triton kernels on a GPU, their plain twins anywhere else.

The kernels are imported only where they run, so that a machine without triton has the operations too.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache
from importlib import import_module
from typing import Protocol

import torch
from torch import Tensor

from harness.models.fused.routing import Choice, Routing


class AddRmsNorm(Protocol):
    """See harness.models.fused.add_rms_norm."""

    def __call__(
        self, states: Tensor, residual: Tensor | None, weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]: ...


class RotateAndStore(Protocol):
    """See harness.models.fused.rotate_and_store."""

    def __call__(
        self,
        qkv: Tensor,
        table: Tensor,
        keys: Tensor,
        values: Tensor,
        slots: Tensor,
        starts: Tensor,
        query_norm: Tensor | None = None,
        key_norm: Tensor | None = None,
        eps: float = 0.0,
    ) -> Tensor: ...


class SlotAttention(Protocol):
    """See harness.models.fused.slot_attention."""

    def __call__(
        self, queries: Tensor, keys: Tensor, values: Tensor, slots: Tensor, starts: Tensor, scaling: float
    ) -> Tensor: ...


class Linear(Protocol):
    """See harness.models.fused.skinny_linear."""

    def __call__(self, states: Tensor, weight: Tensor, bias: Tensor | None = None, splits: bool = False) -> Tensor: ...


class GatedLinear(Protocol):
    """See harness.models.fused.skinny_linear."""

    def __call__(self, states: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor: ...


class NormLatents(Protocol):
    """See harness.models.fused.norm_latents."""

    def __call__(
        self,
        joint: Tensor,
        query_norm: Tensor | None,
        query_eps: float,
        latent_norm: Tensor,
        latent_eps: float,
        table: Tensor,
        keys: Tensor,
        slots: Tensor,
        starts: Tensor,
        interleaved: bool,
    ) -> Tensor | None: ...


class AbsorbQueries(Protocol):
    """See harness.models.fused.absorb_queries."""

    def __call__(
        self, states: Tensor, expansion: Tensor, table: Tensor, starts: Tensor, latent_width: int, interleaved: bool
    ) -> Tensor: ...


class LatentAttend(Protocol):
    """See harness.models.fused.latent_attention."""

    def __call__(
        self, queries: Tensor, keys: Tensor, slots: Tensor, starts: Tensor, latent_width: int, scaling: float
    ) -> Tensor: ...


class ExpandValues(Protocol):
    """See harness.models.fused.expand_values."""

    def __call__(self, attended: Tensor, expansion: Tensor, value_width: int) -> Tensor: ...


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
class Operations:
    """One implementation of the fused operations; some of the reference's wait for the device."""

    name: str
    """triton or reference."""
    add_rms_norm: AddRmsNorm
    rotate_and_store: RotateAndStore
    slot_attention: SlotAttention
    linear: Linear
    gated_linear: GatedLinear
    norm_latents: NormLatents
    absorb_queries: AbsorbQueries
    latent_attention: LatentAttend
    expand_values: ExpandValues
    route_tokens: RouteTokens
    expert_gate_up: ExpertGateUp
    expert_down: ExpertDown
    sum_experts: SumExperts


_FILES = {"linear": "skinny_linear", "gated_linear": "skinny_linear"}
"""Operations whose file is not called like them."""


@cache
def named_operations(name: str) -> Operations:
    """triton, the kernels; or reference, the executable specification on any device."""
    folder = __package__ + ("" if name == "triton" else f".{name}")
    names = [item.name for item in fields(Operations) if item.name != "name"]
    return Operations(name, *(getattr(import_module(f"{folder}.{_FILES.get(each, each)}"), each) for each in names))


def operations_for(device: torch.device) -> Operations:
    """The operations of a device: Triton on CUDA, the reference elsewhere."""
    return named_operations("triton" if device.type == "cuda" else "reference")
