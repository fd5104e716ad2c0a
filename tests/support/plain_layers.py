"""A decoder layer's parts written out plainly, one row at a time, to compare the optimized heads with."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

Weights = dict[str, Tensor]


def linear(states: Tensor, weights: Weights, name: str) -> Tensor:
    """[T, H_in] -> [T, H_out], with a bias where there is one."""
    return states @ weights[f"{name}.weight"].T + weights.get(f"{name}.bias", 0)


def rms_norm(states: Tensor, weight: Tensor, eps: float) -> Tensor:
    """[T, H]."""
    return states / (states.square().mean(-1, keepdim=True) + eps).sqrt() * weight


def rotate(vectors: Tensor, positions: Tensor, theta: float) -> Tensor:
    """RoPE on [T, D]: component j turns with component j + D / 2 by position / theta^(2 j / D)."""
    half = vectors.shape[-1] // 2
    angles = positions[:, None] / theta ** (torch.arange(half) / half)
    first, second = vectors[:, :half], vectors[:, half:]
    return torch.cat(
        (first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()), dim=-1
    )


def attention(states: Tensor, weights: Weights, positions: Tensor, config) -> Tensor:
    """Causal self-attention of [T, H_in], head by head, through the output projection: [T, H]."""
    num_tokens, size = states.shape[0], config.head_dim
    group = config.num_attention_heads // config.num_key_value_heads
    theta = config.rope_parameters["rope_theta"]
    queries, keys, values = (linear(states, weights, f"self_attn.{name}_proj") for name in "qkv")
    outputs = []
    for head in range(config.num_attention_heads):
        of_query, of_key = (
            slice(head * size, (head + 1) * size),
            slice(head // group * size, (head // group + 1) * size),
        )
        query, key = rotate(queries[:, of_query], positions, theta), rotate(keys[:, of_key], positions, theta)
        scores = query @ key.T / math.sqrt(size)
        scores = scores.masked_fill(torch.ones(num_tokens, num_tokens).triu(1).bool(), -math.inf)
        outputs.append(scores.softmax(-1) @ values[:, of_key])
    return linear(torch.cat(outputs, dim=-1), weights, "self_attn.o_proj")


def mlp(states: Tensor, weights: Weights) -> Tensor:
    """Gated SiLU."""
    gate, up = linear(states, weights, "mlp.gate_proj"), linear(states, weights, "mlp.up_proj")
    return linear(gate * gate.sigmoid() * up, weights, "mlp.down_proj")


def eagle3_features(joined: Tensor, weights: Weights, config) -> Tensor:
    """[T, 3 H] states of three layers of the target -> [T, H] what an EAGLE-3 or P-EAGLE head takes of them."""
    eps = config.layer.rms_norm_eps
    if config.fc_norm:
        norms = (weights[f"fc_norm.{index}.weight"] for index in range(3))
        joined = torch.cat([rms_norm(*pair, eps) for pair in zip(joined.chunk(3, dim=-1), norms, strict=True)], dim=-1)
    if config.norm_before_fc:
        joined = rms_norm(joined, weights["input_norm.weight"], eps)
    return joined @ weights["fc.weight"].T


def eagle3_layer(features: Tensor, embedded: Tensor, weights: Weights, config) -> Tensor:
    """[T, H] after the first layer of such a head, which sees embedding and feature of each token side by side."""
    eps, layer = config.layer.rms_norm_eps, with_prefix(weights, "layers.0.")
    normed = rms_norm(features, layer["hidden_norm.weight"], eps)
    entering = torch.cat((rms_norm(embedded, layer["input_layernorm.weight"], eps), normed), dim=-1)
    states = normed if config.norm_before_residual else features
    states = states + attention(entering, layer, torch.arange(len(entering)), config.layer)
    return states + mlp(rms_norm(states, layer["post_attention_layernorm.weight"], eps), layer)


def block_states(joined: Tensor, token_ids: Tensor, head, embedding: Tensor) -> Tensor:
    """[P, H] what the output matrix takes of P places after [T, J] joined states, from the description of the format of
    DFlash and DFlash2."""
    weights, config, eps = head.state_dict_public(), head.config.layer, head.config.layer.rms_norm_eps
    context = rms_norm(joined @ weights["fc.weight"].T, weights["hidden_norm.weight"], eps)
    states, positions = embedding[token_ids], torch.arange(len(joined) + len(token_ids))
    for index in range(config.num_hidden_layers):
        layer = with_prefix(weights, f"layers.{index}.")
        entering, after_attention = convolved(
            rms_norm(states, layer["input_layernorm.weight"], eps), layer, "attention_conv"
        )
        seen = torch.cat((context, entering))
        attended, group = [], config.num_attention_heads // config.num_key_value_heads
        for number in range(config.num_attention_heads):
            query, key, value = (
                linear(tokens, layer, f"self_attn.{name}_proj").unflatten(-1, (-1, config.head_dim))[:, place]
                for tokens, name, place in (
                    (entering, "q", number),
                    (seen, "k", number // group),
                    (seen, "v", number // group),
                )
            )
            theta, first = config.rope_parameters["rope_theta"], len(joined)
            query = rotate(rms_norm(query, layer["self_attn.q_norm.weight"], eps), positions[first:], theta)
            key = rotate(rms_norm(key, layer["self_attn.k_norm.weight"], eps), positions, theta)
            attended.append((query @ key.T / math.sqrt(config.head_dim)).softmax(-1) @ value)
        states = states + after_attention(linear(torch.cat(attended, dim=-1), layer, "self_attn.o_proj"))
        normed, after_mlp = convolved(
            rms_norm(states, layer["post_attention_layernorm.weight"], eps), layer, "mlp_conv"
        )
        states = states + after_mlp(mlp(normed, layer))
    return rms_norm(states, weights["norm.weight"], eps)


def convolved(states: Tensor, weights: Weights, name: str) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """[T, H] states convolved place by place, and the convolution for what is made of them; as they are without one."""
    if f"{name}.base_kernel" not in weights:
        return states, lambda made: made
    base = weights[f"{name}.base_kernel"]
    kernels = linear(states, weights, f"{name}.kernel_projection").unflatten(-1, (2, base.shape[1], -1))

    def convolve(made: Tensor, side: int) -> Tensor:
        found, width = torch.zeros_like(made), made.shape[1] // kernels.shape[-1]
        for place in range(len(made)):
            for tap in range(min(place + 1, base.shape[1])):
                kernel = base[side, tap] + kernels[place, side, tap].repeat_interleave(width)
                found[place] += kernel * made[place - tap]
        return found

    return convolve(states, 0), lambda made: convolve(made, 1)


def with_prefix(weights: Weights, prefix: str, instead: str = "") -> Weights:
    """The weights of one layer, with another prefix or none."""
    return {instead + name.removeprefix(prefix): tensor for name, tensor in weights.items() if name.startswith(prefix)}
