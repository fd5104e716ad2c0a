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

IN_GROUPS = Choice(4, 6, 3, True, 1.0)


def _route_in_groups(num_tokens: int, hidden_size: int, num_experts: int, dtype: torch.dtype) -> None:
    states, router = (torch.empty(count, hidden_size, dtype=dtype) for count in (num_tokens, num_experts))
    route_tokens(states, router, torch.empty(num_experts), IN_GROUPS)


def _product_with_bias(num_tokens: int, hidden_size: int, num_rows: int, dtype: torch.dtype) -> None:
    """Of a vocabulary that is no multiple of a tile."""
    states, weight = (torch.empty(count, hidden_size, dtype=dtype) for count in (num_tokens, num_rows))
    tiling = tiling_of(states, weight, False, False)
    if tiling is not None:
        launch(states, weight, torch.empty(num_rows, dtype=dtype), tiling, False)


def other_layers(dtype: torch.dtype) -> Iterator[Launch]:
    """Experts that are chosen in groups, and logits of an odd vocabulary with a bias."""
    yield "experts in groups, 16 tokens", partial(_route_in_groups, 16, 512, 24, dtype)
    for num_tokens in (16, 256):
        name = f"odd vocabulary with a bias, {num_tokens} tokens"
        yield name, partial(_product_with_bias, num_tokens, 4096, ODD_VOCAB_SIZE, dtype)
