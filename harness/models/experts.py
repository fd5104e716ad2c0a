"""Running the experts of a layer without waiting for the device, so that a CUDA graph can hold it.

It takes one of two products:

    grouped       tokens sorted by expert, one grouped matrix product: each expert that is hit is read once
    every expert  each token through each expert, what was not chosen masked: each expert is read once, hit or not

The grouped product of torch runs on the device alone for bfloat16 on GPUs of compute capability 9 and 10; elsewhere on
a GPU it copies the groups' sizes to the host, which a graph cannot hold. There every expert runs: E / k times the
arithmetic, hidden behind reading the weights in forwards of up to about 200 tokens (N operations for each byte of
16-bit weights), and slow in longer ones. On a CPU nothing waits.

Layers that run through the fused operations come here only with more tokens than their kernels take, in prompts and in
rounds of many slots: see harness.models.fused.layer.

Shapes: N tokens, k experts of a token, E experts, D hidden size, I width of an expert.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

SLOTS_EXPERTS = "slots_experts"
"""What a configuration of transformers calls it."""
GROUPED_CAPABILITIES = (9, 10)
GROUPED_ALIGNMENT_BYTES = 16
"""What the grouped product wants every row of its operands to be a multiple of."""
EVERY_EXPERT_NOTE = (
    "every expert runs for every token, but in what runs fused: a grouped product of these weights is not to be had on "
    "this device without waiting for it (bfloat16 on a GPU of compute capability 9 or 10, rows of a multiple of 16 "
    "bytes)"
)


def slots_experts(
    module: Any,
    # [N, D]
    hidden_states: Tensor,
    # [N, k] int64
    top_k_index: Tensor,
    # [N, k]
    top_k_weights: Tensor,
) -> Tensor:
    """Each token's experts, weighted and added: [N, D].

    module: experts of transformers, which hold gate_up_proj [E, 2 I, D], down_proj [E, D, I] and act_fn.
    """
    if runs_grouped(module.gate_up_proj, module.down_proj):
        # there since the module was made
        from transformers.integrations.moe import grouped_mm_experts_forward

        return grouped_mm_experts_forward(module, hidden_states, top_k_index, top_k_weights)
    return every_expert(module, hidden_states, top_k_index, top_k_weights)


def runs_grouped(*weights: Tensor) -> bool:
    """Whether the grouped product takes these weights [E, out, in] without waiting for the device."""
    aligned = all(weight.shape[-1] * weight.element_size() % GROUPED_ALIGNMENT_BYTES == 0 for weight in weights)
    device = weights[0].device
    if device.type != "cuda":
        return aligned
    in_bfloat16 = all(weight.dtype == torch.bfloat16 for weight in weights)
    return aligned and in_bfloat16 and torch.cuda.get_device_capability(device)[0] in GROUPED_CAPABILITIES


def every_expert(module: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """As slots_experts, with every token through every expert."""
    num_experts = module.gate_up_proj.shape[0]
    # [N, E]
    weights = hidden_states.new_zeros(hidden_states.shape[0], num_experts, dtype=top_k_weights.dtype)
    weights.scatter_(1, top_k_index, top_k_weights)
    chosen = torch.zeros_like(weights, dtype=torch.bool).scatter_(1, top_k_index, True)
    # [E, N, 2 I]
    gate, up = (hidden_states @ module.gate_up_proj.transpose(1, 2)).chunk(2, dim=-1)
    # masked, not weighted by 0: an expert that was not asked may overflow, and 0 times infinity is NaN
    inner = (module.act_fn(gate) * up).masked_fill(~chosen.T.unsqueeze(-1), 0)
    # [E, N, D]
    outputs = inner @ module.down_proj.transpose(1, 2)
    return torch.einsum("end,ne->nd", outputs.to(weights.dtype), weights).to(hidden_states.dtype)
