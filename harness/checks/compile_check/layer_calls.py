"""Calls of fused operations that the steps of no shipped shape make, though they serve other checkpoints.

This module does not know for which GPUs.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from harness.checks.compile_check.compiled import Launch
from harness.checks.compile_check.core_calls import ODD_VOCAB_SIZE
from harness.models.fused.linear import tiling_of
from harness.models.fused.route_tokens import route_tokens
from harness.models.fused.routing import Choice
from harness.models.fused.skinny_linear import launch
from harness.models.general.custom_ops import routed_experts

IN_GROUPS = Choice(4, 6, 3, True, 1.0)
QWEN3_30B_A3B, QWEN3_NEXT = (128, 8, 2048, 768), (512, 10, 2048, 512)


def _route_in_groups(num_tokens: int, hidden_size: int, num_experts: int, dtype: torch.dtype) -> None:
    states, router = (torch.empty(count, hidden_size, dtype=dtype) for count in (num_tokens, num_experts))
    route_tokens(states, router, torch.empty(num_experts), IN_GROUPS)


def _product_with_bias(num_tokens: int, hidden_size: int, num_rows: int, dtype: torch.dtype) -> None:
    """Of a vocabulary that is no multiple of a tile."""
    states, weight = (torch.empty(count, hidden_size, dtype=dtype) for count in (num_tokens, num_rows))
    tiling = tiling_of(states, weight, False, False)
    if tiling is not None:
        launch(states, weight, torch.empty(num_rows, dtype=dtype), tiling, False)


def _routed_experts(num_tokens: int, sizes: tuple[int, int, int, int], dtype: torch.dtype) -> None:
    """As layers of transformers run them; sizes: E, k, H, I."""
    num_experts, top_k, hidden_size, width = sizes
    states, weights = (torch.empty(num_tokens, count, dtype=dtype) for count in (hidden_size, top_k))
    gate_up = torch.empty(num_experts, 2 * width, hidden_size, dtype=dtype)
    down = torch.empty(num_experts, hidden_size, width, dtype=dtype)
    routed_experts(states, torch.empty(num_tokens, top_k, dtype=torch.int64), weights, gate_up, down)


def other_layers(dtype: torch.dtype) -> Iterator[Launch]:
    """Experts that are chosen in groups, those of layers of transformers, logits of an odd vocabulary with a bias."""
    yield "experts in groups, 16 tokens", partial(_route_in_groups, 16, 512, 24, dtype)
    for num_tokens in (16, 256):
        yield f"routed experts, {num_tokens} tokens", partial(_routed_experts, num_tokens, QWEN3_30B_A3B, dtype)
        yield f"many routed experts, {num_tokens} tokens", partial(_routed_experts, num_tokens, QWEN3_NEXT, dtype)
    for num_tokens in (16, 256):
        name = f"odd vocabulary with a bias, {num_tokens} tokens"
        yield name, partial(_product_with_bias, num_tokens, 4096, ODD_VOCAB_SIZE, dtype)
