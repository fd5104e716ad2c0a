"""The fused residual and norm against its twin, and the twin against transformers."""

from __future__ import annotations

import pytest
import torch
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from harness.models.fused.reference import add_rms_norm as reference_add_rms_norm
from harness.models.fused.reference import add_shares as reference_add_shares
from tests.support.fused_rows import DEVICE, DTYPES, HALF_UNIT, assert_rounded_alike, normal, same
from tests.support.kernel_rounds import poisoned_allocations


def inputs(num_tokens: int, hidden_size: int, dtype: torch.dtype):
    states, residual = (normal(num_tokens, hidden_size, seed=seed, dtype=dtype, scale=3) for seed in (1, 2))
    return states, residual, 1 + normal(hidden_size, seed=3, dtype=dtype, scale=0.2)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("with_residual", [True, False], ids=["residual", "no residual"])
@pytest.mark.parametrize("hidden_size", [1, 63, 256])
def test_kernel_equals_its_twin(hidden_size: int, with_residual: bool, dtype: torch.dtype):
    from harness.models.fused.add_rms_norm import add_rms_norm

    states, residual, weight = inputs(3, hidden_size, dtype)
    given = residual if with_residual else None
    with poisoned_allocations():
        normed, total = add_rms_norm(states, given, weight, 1e-5)
    expected_normed, expected_total = reference_add_rms_norm(states, given, weight, 1e-5)
    same(total, expected_total)
    # The sum of squares is off by a rounding for each term, the root by half as much.
    assert_rounded_alike(normed, expected_normed, 2, HALF_UNIT * (hidden_size + 8))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("with_residual", [True, False], ids=["residual", "no residual"])
def test_shares_are_summed_in_order_and_rounded(with_residual: bool, dtype: torch.dtype):
    from harness.models.fused.add_rms_norm import add_rms_norm

    _, residual, weight = inputs(4, 63, dtype)
    shares, given = normal(3, 4, 63, seed=4), residual if with_residual else None
    summed = ((shares[0] + shares[1]) + shares[2]).to(dtype)
    with poisoned_allocations():
        normed, total = add_rms_norm(shares, given, weight, 1e-5)
    same(total, summed if given is None else summed + given)
    expected_normed, expected_total = reference_add_rms_norm(shares, given, weight, 1e-5)
    same(total, expected_total)
    assert_rounded_alike(normed, expected_normed, 2, HALF_UNIT * (63 + 8))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("num_shares", [1, 3], ids=["whole", "shares"])
def test_a_sum_without_a_norm_is_that_of_the_norm(num_shares: int, dtype: torch.dtype):
    from harness.models.fused.add_rms_norm import add_shares

    states, residual, weight = inputs(4, 63, dtype)
    given = states if num_shares == 1 else normal(num_shares, 4, 63, seed=4)
    with poisoned_allocations():
        found = add_shares(given, residual)
    same(found, reference_add_rms_norm(given, residual, weight, 1e-5)[1])
    same(found, reference_add_shares(given, residual))
    with pytest.raises(ValueError, match=r"residual must be \[4, 63\]"):
        add_shares(given, residual[:2])


@pytest.mark.gpu
@pytest.mark.parametrize("num_tokens", [1, 64, 2048])
@pytest.mark.parametrize("num_shares", [1, 2], ids=["whole", "shares"])
def test_a_sum_without_a_norm_at_real_sizes(num_shares: int, num_tokens: int):
    from harness.models.fused.add_rms_norm import add_shares

    states, residual = (normal(num_tokens, 4096, seed=seed, dtype=torch.bfloat16) for seed in (1, 2))
    given = states if num_shares == 1 else normal(num_shares, num_tokens, 4096, seed=4)
    same(add_shares(given, residual), reference_add_shares(given, residual))


@pytest.mark.parametrize("dtype", [*DTYPES, torch.bfloat16], ids=str)
def test_twin_rounds_as_transformers_does(dtype: torch.dtype):
    states, residual, weight = inputs(5, 63, dtype)
    norm = LlamaRMSNorm(63, eps=1e-5).to(device=DEVICE, dtype=dtype)
    norm.weight.data = weight
    normed, total = reference_add_rms_norm(states, residual, weight, 1e-5)
    same(total, states + residual)
    same(normed, norm(states + residual).detach())


def test_without_a_residual_the_states_are_the_total():
    from harness.models.fused.add_rms_norm import add_rms_norm

    states, _, weight = inputs(2, 8, torch.float32)
    assert add_rms_norm(states, None, weight, 1e-5)[1] is states


def test_what_would_be_misread_is_refused():
    from harness.models.fused.add_rms_norm import add_rms_norm

    states, residual, weight = inputs(4, 8, torch.float32)
    with pytest.raises(ValueError, match=r"residual must be \[4, 8\] torch.float32 without gaps, found \[2, 8\]"):
        add_rms_norm(states, residual[:2], weight, 1e-5)
    with pytest.raises(ValueError, match=r"states must be .* without gaps"):
        add_rms_norm(states[:, ::2], None, weight[:4], 1e-5)
    with pytest.raises(ValueError, match=r"weight must be .* found .* torch\.float16"):
        add_rms_norm(states, None, weight.half(), 1e-5)
    with pytest.raises(ValueError, match=r"states must be \[N, H\], found \[1, 4, 8\]; flatten the rows"):
        add_rms_norm(states[None], None, weight, 1e-5)
    with pytest.raises(ValueError, match=r"states must be .* torch.float32 without gaps, found .* torch\.float16"):
        add_rms_norm(torch.stack((states, states)).half(), None, weight, 1e-5)
