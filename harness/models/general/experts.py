"""How the experts of a network of transformers run: without waiting for the device, which a CUDA graph cannot hold."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from harness.models.experts import GROUPED_CAPABILITIES

SHAPES_ALONE = "rejection_lab_shapes"
"""What a configuration calls experts that compute nothing."""
GATHERED = "batched_mm"
"""transformers' product that gathers the weights of each token's experts."""
GATHERED_NOTE = (
    "the weights of each token's experts are gathered for it: a grouped product that does not wait for the device is "
    "not to be had here (bfloat16 on a GPU of compute capability 9 or 10)"
)


def choose_experts(causal_lm: Any) -> str | None:
    """Let experts run so that nothing waits for the device; returns what that costs, where it costs something."""
    weight = causal_lm.get_input_embeddings().weight
    if weight.is_meta:
        _register()
        _set(causal_lm, SHAPES_ALONE)
    elif weight.is_cuda and not _runs_grouped(weight) and _set(causal_lm, GATHERED):
        return GATHERED_NOTE
    return None


def _runs_grouped(weight: Tensor) -> bool:
    capability = torch.cuda.get_device_capability(weight.device)[0]
    return weight.dtype is torch.bfloat16 and capability in GROUPED_CAPABILITIES


def _set(causal_lm: Any, implementation: str) -> bool:
    """Let the experts of a model run by a name; returns whether it has such experts."""
    found = [module for module in causal_lm.modules() if type(module).__name__.endswith("Experts")]
    for module in found:
        if hasattr(module, "config"):
            module.config._experts_implementation = implementation
    return bool(found)


@cache
def _register() -> None:
    ALL_EXPERTS_FUNCTIONS.register(SHAPES_ALONE, _shapes_alone)


def _shapes_alone(module: Any, hidden_states: Tensor, *_: Any, **__: Any) -> Tensor:
    """States of the shape that experts give: a grouped product of few types alone has shapes on the meta device."""
    return torch.empty_like(hidden_states)
