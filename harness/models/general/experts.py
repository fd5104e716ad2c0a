"""How the experts of a network of transformers run: without waiting for the device, which a CUDA graph cannot hold."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from transformers.activations import SiLUActivation
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS, _default_apply_gate

from harness.models.experts import GROUPED_CAPABILITIES
from harness.models.fused.checks import DTYPES
from harness.models.general import custom_ops

SHAPES_ALONE = "rejection_lab_shapes"
"""What a configuration calls experts that compute nothing."""
ROUTED = "rejection_lab_routed"
"""What it calls experts whose products are kernels of our own in forwards of up to MAX_ROUTED tokens."""
MAX_ROUTED = 256
"""Tokens of a forward. Products of more are bound by arithmetic, which `grouped_mm` does faster."""
GROUPED = "grouped_mm"
"""transformers' product of tokens sorted by expert."""
GATHERED = "batched_mm"
"""transformers' product that gathers the weights of each token's experts."""
GATHERED_NOTE = (
    "the weights of each token's experts are gathered for it: a grouped product that does not wait for the device is "
    "not to be had here (bfloat16 on a GPU of compute capability 9 or 10)"
)


def choose_experts(causal_lm: Any) -> str | None:
    """Let experts run so that nothing waits for the device; returns how they do and what that costs, on a GPU."""
    weight = causal_lm.get_input_embeddings().weight
    experts = experts_of(causal_lm)
    if weight.is_meta:
        _register()
        _set(experts, SHAPES_ALONE)
    if not weight.is_cuda or not experts:
        return None
    if not _runs_grouped(weight):
        _set(experts, GATHERED)
        return GATHERED_NOTE
    obstacles = [obstacle for obstacle in map(routed_obstacle, experts) if obstacle is not None]
    if obstacles:
        _set(experts, GROUPED)
        return f"experts run by {GROUPED} of transformers in forwards of few tokens too: {obstacles[0]}"
    _register()
    _set(experts, ROUTED)
    return f"experts run by kernels of our own in forwards of up to {MAX_ROUTED} tokens, else by {GROUPED}"


def routed_obstacle(experts: Any) -> str | None:
    """Why kernels of our own do not compute experts of transformers; None if they do."""
    weights: list[Any] = [getattr(experts, name, None) for name in ("gate_up_proj", "down_proj")]
    if not all(type(weight) is nn.Parameter and weight.dim() == 3 and weight.is_contiguous() for weight in weights):
        return "their weights are no two plain tensors of all experts"
    if any(weight.dtype not in DTYPES for weight in weights):
        return "their weights are rounded to fewer bits"
    is_plain = getattr(experts, "is_concatenated", False) and getattr(experts, "has_gate", False)
    other = [name for name in ("is_transposed", "has_bias", "has_post_expert_norm") if getattr(experts, name, False)]
    if other or not is_plain:
        return f"they are laid out otherwise ({', '.join(other) or 'no gate and up one behind the other'})"
    has_silu = isinstance(getattr(experts, "act_fn", None), (nn.SiLU, SiLUActivation))
    if not has_silu or getattr(type(experts), "_apply_gate", None) is not _default_apply_gate:
        return "their activation is not silu(gate) * up"
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return "they are shared out over processes"
    return None


def _runs_grouped(weight: Tensor) -> bool:
    capability = torch.cuda.get_device_capability(weight.device)[0]
    return weight.dtype is torch.bfloat16 and capability in GROUPED_CAPABILITIES


def experts_of(causal_lm: Any) -> list[Any]:
    """Modules that run experts by a name in their configuration."""
    # set on every class whose forward asks for that name
    return [module for module in causal_lm.modules() if hasattr(module, "has_gate") and hasattr(module, "config")]


def _set(experts: list[Any], implementation: str) -> None:
    for module in experts:
        module.config._experts_implementation = implementation


@cache
def _register() -> None:
    ALL_EXPERTS_FUNCTIONS.register(SHAPES_ALONE, _shapes_alone)
    ALL_EXPERTS_FUNCTIONS.register(ROUTED, run_routed)


def run_routed(
    module: Any,
    # [N, H]
    hidden_states: Tensor,
    # [N, k] int64
    top_k_index: Tensor,
    # [N, k]
    top_k_weights: Tensor,
) -> Tensor:
    """[N, H]: experts of transformers without a `routed_obstacle`, by our own kernels where there are few tokens."""
    if hidden_states.shape[0] > MAX_ROUTED:
        found: Tensor = ALL_EXPERTS_FUNCTIONS[GROUPED](module, hidden_states, top_k_index, top_k_weights)
        return found
    given = hidden_states.contiguous(), top_k_index.contiguous(), top_k_weights.contiguous()
    weights = module.gate_up_proj, module.down_proj
    if torch.compiler.is_compiling():
        routed: Tensor = torch.ops.rejection_lab_layers.routed_experts(*given, *weights)
        return routed
    return custom_ops.routed_experts(*given, *weights)


def _shapes_alone(module: Any, hidden_states: Tensor, *_: Any, **__: Any) -> Tensor:
    """States of the shape that experts give: a grouped product of few types alone has shapes on the meta device."""
    return torch.empty_like(hidden_states)
