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
from harness.models.fused.clamped_gate import ClampedGate
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
    for each in experts:
        make_ready(each)
    _register()
    _set(experts, ROUTED)
    return f"experts run by kernels of our own in forwards of up to {MAX_ROUTED} tokens, else by {GROUPED}"


def routed_obstacle(experts: Any) -> str | None:
    """Why kernels of our own do not compute experts of transformers; None if they do."""
    weights: list[Any] = [getattr(experts, name, None) for name in ("gate_up_proj", "down_proj")]
    # transposed ones come to lie as kernels read them (`make_ready`)
    is_moved = getattr(experts, "is_transposed", False)
    if not all(
        type(weight) is nn.Parameter and weight.dim() == 3 and (is_moved or weight.is_contiguous())
        for weight in weights
    ):
        return "their weights are no two plain tensors of all experts"
    dtypes = {each.dtype for each in (*weights, *(_biases(experts) or ()))}
    if len(dtypes) > 1 or not dtypes <= set(DTYPES):
        return "their weights are rounded to fewer bits, or of several types"
    if not getattr(experts, "has_gate", False) or getattr(experts, "has_post_expert_norm", False):
        return "they have no gate, or a norm behind their products"
    if not _has_silu(experts) and clamped_gate_of(experts) is None:
        return "their activation is neither silu(gate) * up nor that of gpt-oss"
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return "they are shared out over processes"
    return None


def _has_silu(experts: Any) -> bool:
    """Whether experts join gate and up, one behind the other, by silu(gate) * up."""
    has_silu = isinstance(getattr(experts, "act_fn", None), (nn.SiLU, SiLUActivation))
    is_default = getattr(type(experts), "_apply_gate", None) is _default_apply_gate
    return has_silu and is_default and getattr(experts, "is_concatenated", False)


def clamped_gate_of(experts: Any) -> ClampedGate | None:
    """How experts of gpt-oss join gate and up, held against their own code; None of others."""
    alpha, limit = getattr(experts, "alpha", None), getattr(experts, "limit", None)
    if not isinstance(alpha, float) or not isinstance(limit, (int, float)):
        return None
    clamped = ClampedGate(alpha, float(limit))
    # to beyond the limit on both sides
    gate_up = torch.linspace(-2 * clamped.limit, 2 * clamped.limit, 28, device="cpu").view(2, 14).flip(1)
    is_same = torch.equal(experts._apply_gate(gate_up), clamped.applied(gate_up))
    return clamped if is_same else None


def _biases(experts: Any) -> tuple[Tensor, Tensor] | None:
    return (experts.gate_up_proj_bias, experts.down_proj_bias) if getattr(experts, "has_bias", False) else None


def make_ready(experts: Any) -> None:
    """Settle what `run_routed` needs to know of experts without a `routed_obstacle`.

    Weights that stand transposed, [E, H, 2 I] and [E, I, H], come to lie by rows of what a product gives. Their shapes
    and values stay; grouped products of transformers read either layout.
    """
    experts.clamped_gate = None if _has_silu(experts) else clamped_gate_of(experts)
    if not getattr(experts, "is_transposed", False):
        return
    for weight in (experts.gate_up_proj, experts.down_proj):
        weight.data = weight.data.transpose(1, 2).contiguous().transpose(1, 2)


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
    """[N, H]: experts of transformers without a `routed_obstacle`, by our own kernels where there are few tokens.

    `make_ready` has run on them.
    """
    if hidden_states.shape[0] > MAX_ROUTED:
        found: Tensor = ALL_EXPERTS_FUNCTIONS[GROUPED](module, hidden_states, top_k_index, top_k_weights)
        return found
    given = hidden_states.contiguous(), top_k_index.contiguous(), top_k_weights.contiguous()
    weights = [module.gate_up_proj, module.down_proj]
    if module.is_transposed:
        weights = [weight.transpose(1, 2) for weight in weights]
    biases, gate = _biases(module) or (None, None), module.clamped_gate or (None, None)
    if torch.compiler.is_compiling():
        routed: Tensor = torch.ops.rejection_lab_layers.routed_experts(*given, *weights, *biases, *gate)
        return routed
    return custom_ops.routed_experts(*given, *weights, *biases, *gate)


def _shapes_alone(module: Any, hidden_states: Tensor, *_: Any, **__: Any) -> Tensor:
    """States of the shape that experts give: a grouped product of few types alone has shapes on the meta device."""
    return torch.empty_like(hidden_states)
