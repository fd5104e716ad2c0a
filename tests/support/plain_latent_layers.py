"""Latent attention and experts written out plainly, token by token and head by head, from their published formulas."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tests.support.plain_layers import Weights, linear, mlp, rms_norm, with_prefix

INNER_NORM_EPS = 1e-6
"""Of the norms inside attention: transformers takes its default there, not the configuration's."""


def rotate_pairs(vectors: Tensor, positions: Tensor, theta: float) -> Tensor:
    """RoPE on [T, P]: components 2 j and 2 j + 1 are a complex number, turned by position / theta^(2 j / P)."""
    half = vectors.shape[-1] // 2
    angles = positions[:, None] / theta ** (torch.arange(half) / half)
    turned = torch.view_as_complex(vectors.reshape(-1, half, 2).contiguous()) * torch.polar(torch.ones(()), angles)
    return torch.view_as_real(turned).flatten(1)


def latent_attention(states: Tensor, weights: Weights, positions: Tensor, config) -> Tensor:
    """Causal MLA of [T, D] with keys and values expanded from the latents: [T, D]. DeepSeek-V2, equations 9 to 19."""
    attn = with_prefix(weights, "self_attn.")
    nope, rope, theta = config.qk_nope_head_dim, config.qk_rope_head_dim, config.rope_parameters["rope_theta"]
    num_tokens, value_dim = states.shape[0], config.v_head_dim
    queries = linear(states, attn, "q_a_proj")
    queries = linear(rms_norm(queries, attn["q_a_layernorm.weight"], INNER_NORM_EPS), attn, "q_b_proj")
    compressed = linear(states, attn, "kv_a_proj_with_mqa")
    latents = rms_norm(compressed[:, : config.kv_lora_rank], attn["kv_a_layernorm.weight"], INNER_NORM_EPS)
    shared_key = rotate_pairs(compressed[:, config.kv_lora_rank :], positions, theta)
    expanded = linear(latents, attn, "kv_b_proj")
    outputs = []
    for head in range(config.num_attention_heads):
        query = queries[:, head * (nope + rope) : (head + 1) * (nope + rope)]
        query = torch.cat((query[:, :nope], rotate_pairs(query[:, nope:], positions, theta)), dim=-1)
        own = expanded[:, head * (nope + value_dim) : (head + 1) * (nope + value_dim)]
        scores = query @ torch.cat((own[:, :nope], shared_key), dim=-1).T / math.sqrt(nope + rope)
        scores = scores.masked_fill(torch.ones(num_tokens, num_tokens).triu(1).bool(), -math.inf)
        outputs.append(scores.softmax(-1) @ own[:, nope:])
    return linear(torch.cat(outputs, dim=-1), attn, "o_proj")


def experts(states: Tensor, weights: Weights, config) -> Tensor:
    """[T, D]: k experts of each token, chosen by score plus bias and weighted by score alone, and the shared ones.

    DeepSeek-V3, equations 12 to 16, with one group.
    """
    outputs = []
    for state in states:
        scores = torch.sigmoid(weights["mlp.gate.weight"] @ state)
        chosen = (scores + weights["mlp.gate.e_score_correction_bias"]).sort(descending=True).indices
        chosen = chosen[: config.num_experts_per_tok].tolist()
        output = mlp(
            state, {f"mlp.{name}": tensor for name, tensor in with_prefix(weights, "mlp.shared_experts.").items()}
        )
        for expert in chosen:
            own = {f"mlp.{name}": tensor for name, tensor in with_prefix(weights, f"mlp.experts.{expert}.").items()}
            share = scores[expert] / scores[chosen].sum() * config.routed_scaling_factor
            output = output + share * mlp(state, own)
        outputs.append(output)
    return torch.stack(outputs)
