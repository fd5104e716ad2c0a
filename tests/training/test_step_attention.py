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
        mask = step_mask(query.shape[2], step, query.dtype, query.device)
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


@pytest.mark.gpu
@pytest.mark.parametrize("num_key_heads", [9, 3])
def test_a_gpu_gives_in_bfloat16_what_a_mask_does_in_float32(num_key_heads: int) -> None:
    """Would catch another order of arguments, or a log of another base, of flash attention there."""
    torch.manual_seed(5)
    given = [
        [torch.randn(2, num_heads, 200, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]
        for num_heads in (9, num_key_heads, num_key_heads)
    ]
    attention = StepAttention()
    exact = [[tensor.detach().float().requires_grad_() for tensor in each] for each in given]
    joined = [attention.attend(*each, None) for each in zip(*given, strict=True)]
    plain = masked(*exact, None)
    weights = [torch.randn_like(output) for output in plain]
    gradients = []
    for outputs, leaves in ((joined, given), (plain, exact)):
        total = torch.stack([(output * weight).sum() for output, weight in zip(outputs, weights, strict=True)]).sum()
        gradients.append(torch.autograd.grad(total, [tensor for each in leaves for tensor in each]))
    for found, expected in zip([*joined, *gradients[0]], [*plain, *gradients[1]], strict=True):
        assert (found.float() - expected).norm() < 0.02 * expected.norm()
