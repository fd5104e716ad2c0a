"""Attention of unrolled steps beside that with a mask of numbers: the same values and gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from harness.models.attention import slots_attention
from harness.training.step_attention import StepAttention, step_mask

NUM_ROWS, NUM_PAIRS, WIDTH, NUM_STEPS = 2, 19, 16, 4


def drawn(num_heads: int) -> list[Tensor]:
    return [torch.randn(NUM_ROWS, num_heads, NUM_PAIRS, WIDTH, requires_grad=True) for _ in range(NUM_STEPS)]


def masked(queries: list[Tensor], keys: list[Tensor], values: list[Tensor], scaling: float | None) -> list[Tensor]:
    """Each step over all keys so far, with a mask that says which count."""
    found = []
    for step, query in enumerate(queries):
        mask = step_mask(NUM_PAIRS, step, query.dtype, query.device)
        seen = torch.cat(keys[: step + 1], dim=2), torch.cat(values[: step + 1], dim=2)
        found.append(slots_attention(torch.nn.Identity(), query, *seen, mask, scaling)[0].transpose(1, 2))
    return found


@pytest.mark.parametrize(("num_heads", "num_key_heads"), [(6, 2), (3, 3)])
@pytest.mark.parametrize("scaling", [None, 0.7])
def test_values_and_gradients_are_those_of_a_mask(num_heads: int, num_key_heads: int, scaling: float | None) -> None:
    """Would catch a softmax over each part alone, and gradients of the causal part by its own sums."""
    torch.manual_seed(4)
    queries, keys, values = drawn(num_heads), drawn(num_key_heads), drawn(num_key_heads)
    leaves = [*queries, *keys, *values]
    weights = [torch.randn_like(query) for query in queries]
    attention = StepAttention()
    joined = [attention.attend(*given, scaling) for given in zip(queries, keys, values, strict=True)]
    plain = masked(queries, keys, values, scaling)
    gradients = []
    for outputs in (joined, plain):
        total = torch.stack([(output * weight).sum() for output, weight in zip(outputs, weights, strict=True)]).sum()
        gradients.append(torch.autograd.grad(total, leaves))
    for found, expected in zip([*joined, *gradients[0]], [*plain, *gradients[1]], strict=True):
        torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-4)
