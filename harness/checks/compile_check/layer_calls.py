"""Calls of fused operations that the steps of no shipped shape make, though they serve other checkpoints.

This module does not know for which GPUs.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from harness.checks.compile_check.compiled import Launch
from harness.checks.compile_check.core_calls import ODD_VOCAB_SIZE
from harness.models.fused.clamped_gate import ClampedGate
from harness.models.fused.linear import tiling_of
from harness.models.fused.route_tokens import route_tokens
from harness.models.fused.routing import Choice
from harness.models.fused.skinny_linear import launch
from harness.models.general.custom_ops import routed_experts, slot_attention

IN_GROUPS = Choice(4, 6, 3, True, 1.0)
QWEN3_30B_A3B, QWEN3_NEXT, GPT_OSS = (128, 8, 2048, 768), (512, 10, 2048, 512), (32, 4, 2880, 2880)
CLAMPED = ClampedGate(1.702, 7.0)


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
    given = states, torch.empty(num_tokens, top_k, dtype=torch.int64), weights, gate_up, down
    if sizes == GPT_OSS:
        of_gate_up, of_down = (torch.empty(num_experts, size, dtype=dtype) for size in (2 * width, hidden_size))
        routed_experts(*given, of_gate_up, of_down, CLAMPED.alpha, CLAMPED.limit)
    else:
        routed_experts(*given)


def _attention(
    num_rows: int, num_tokens: int, heads: tuple[int, int, int], dtype: torch.dtype, softcap: float | None
) -> None:
    """Through windows; heads: Hq, Hk, D. Without a soft cap there are sinks."""
    num_heads, num_key_heads, width = heads
    queries = torch.empty(num_rows, num_tokens, num_heads, width, dtype=dtype)
    keys, values = (torch.empty(num_rows, num_key_heads, 4096, width, dtype=dtype) for _ in range(2))
    slots, starts, windows = (torch.empty(num_rows, dtype=torch.int64) for _ in range(3))
    sinks = None if softcap else torch.empty(num_heads, dtype=dtype)
    slot_attention(queries, keys, values, slots, starts, 1.0, windows, sinks, softcap)


def other_layers(dtype: torch.dtype) -> Iterator[Launch]:
    """Experts that are chosen in groups, experts and attention of layers of transformers, logits of an odd vocabulary
    with a bias."""
    yield "experts in groups, 16 tokens", partial(_route_in_groups, 16, 512, 24, dtype)
    for num_tokens in (16, 256):
        yield f"routed experts, {num_tokens} tokens", partial(_routed_experts, num_tokens, QWEN3_30B_A3B, dtype)
        yield f"many routed experts, {num_tokens} tokens", partial(_routed_experts, num_tokens, QWEN3_NEXT, dtype)
        yield f"routed experts of gpt-oss, {num_tokens} tokens", partial(_routed_experts, num_tokens, GPT_OSS, dtype)
    for num_rows, num_tokens in ((16, 1), (16, 4), (1, 1)):
        of_rows = f"{num_rows} rows of {num_tokens} tokens"
        sinks, capped = ((64, 8, 64), dtype, None), ((32, 16, 128), dtype, 50.0)
        yield f"windows and sinks, {of_rows}", partial(_attention, num_rows, num_tokens, *sinks)
        yield f"windows and a soft cap, {of_rows}", partial(_attention, num_rows, num_tokens, *capped)
    for num_tokens in (16, 256):
        name = f"odd vocabulary with a bias, {num_tokens} tokens"
        yield name, partial(_product_with_bias, num_tokens, 4096, ODD_VOCAB_SIZE, dtype)
