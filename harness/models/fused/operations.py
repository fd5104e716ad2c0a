"""The fused operations by name of their implementation: the Triton kernels on a GPU, their plain twins on a CPU.

The kernels are imported only where they run, so that a machine without triton has the operations too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cache
from importlib import import_module

import torch
from torch import Tensor

from harness.models.fused.routing import Routing


@dataclass(frozen=True)
class Operations:
    """One implementation of the fused operations; some of the reference's wait for the device.

    The file of its name in harness.models.fused defines what each takes.
    """

    name: str
    """triton or reference."""
    add_rms_norm: Callable[..., tuple[Tensor, Tensor]]
    add_shares: Callable[..., Tensor]
    join_embedded: Callable[..., tuple[Tensor, Tensor]]
    rotate_and_store: Callable[..., Tensor]
    slot_attention: Callable[..., Tensor]
    linear: Callable[..., Tensor]
    gated_linear: Callable[..., Tensor]
    norm_latents: Callable[..., Tensor | None]
    absorb_queries: Callable[..., Tensor]
    latent_attention: Callable[..., Tensor]
    expand_values: Callable[..., Tensor]
    route_tokens: Callable[..., Routing]
    place_pairs: Callable[..., Routing]
    expert_gate_up: Callable[..., Tensor]
    expert_down: Callable[..., Tensor]
    sum_experts: Callable[..., Tensor]


_FILES = {"add_shares": "add_rms_norm", "gated_linear": "linear"}
"""Operations whose file is not called like them."""


@cache
def named_operations(name: str) -> Operations:
    """triton, the kernels; or reference, the executable specification on any device."""
    names = [item.name for item in fields(Operations) if item.name != "name"]
    files = ["reference" if name == "reference" else _FILES.get(each, each) for each in names]
    modules = (import_module(f"{__package__}.{file}") for file in files)
    return Operations(name, *(getattr(module, each) for module, each in zip(modules, names, strict=True)))


def operations_for(device: torch.device) -> Operations:
    """The operations of a device: Triton on CUDA, and on the meta device, which stands for it; else the reference."""
    return named_operations("triton" if device.type in ("cuda", "meta") else "reference")
