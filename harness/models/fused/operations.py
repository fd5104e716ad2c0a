"""The fused operations of a device: the Triton kernels on a GPU, their plain twins anywhere else.

The kernels are imported only where they run, so that a machine without triton has the operations too.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Protocol

import torch
from torch import Tensor


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


@dataclass(frozen=True)
class Operations:
    """One implementation of the fused operations."""

    name: str
    """triton or reference."""
    add_rms_norm: AddRmsNorm
    rotate_and_store: RotateAndStore
    slot_attention: SlotAttention
    linear: Linear
    gated_linear: GatedLinear


@cache
def reference_operations() -> Operations:
    """The executable specification, on any device; two of them wait for the device."""
    from harness.models.fused.reference.add_rms_norm import add_rms_norm
    from harness.models.fused.reference.rotate_and_store import rotate_and_store
    from harness.models.fused.reference.skinny_linear import gated_linear, linear
    from harness.models.fused.reference.slot_attention import slot_attention

    return Operations("reference", add_rms_norm, rotate_and_store, slot_attention, linear, gated_linear)


@cache
def triton_operations() -> Operations:
    """The kernels."""
    from harness.models.fused.add_rms_norm import add_rms_norm
    from harness.models.fused.rotate_and_store import rotate_and_store
    from harness.models.fused.skinny_linear import gated_linear, linear
    from harness.models.fused.slot_attention import slot_attention

    return Operations("triton", add_rms_norm, rotate_and_store, slot_attention, linear, gated_linear)


def operations_for(device: torch.device) -> Operations:
    """The operations of a device: Triton on CUDA, the reference elsewhere."""
    return triton_operations() if device.type == "cuda" else reference_operations()
