"""Fused residuals, norms, gates and embeddings beside features against twins, and the twins against transformers."""

from __future__ import annotations

import pytest
import torch
from transformers.activations import ACT2FN
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from harness.models.fused.reference import add_rms_norm, join_embedded
from harness.models.fused.reference import add_rms_norm as reference_add_rms_norm
from harness.models.fused.reference import add_shares as reference_add_shares
from harness.models.fused.reference import silu_mul as reference_silu_mul
from tests.support.fused_rows import DEVICE, DTYPES, HALF_UNIT, assert_rounded_alike, normal, same, silu_error
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


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [1, 63, 1056])
def test_a_gate_equals_its_twin(size: int, dtype: torch.dtype):
    from harness.models.fused.gated_activation import silu_mul

    gate_up = normal(3, 2 * size, dtype=dtype, scale=3)
    with poisoned_allocations():
        found = silu_mul(gate_up)
    assert_rounded_alike(found, reference_silu_mul(gate_up), 2, silu_error(gate_up))


@pytest.mark.filterwarnings("ignore:overflow encountered in exp")  # numpy's, of the interpreter: 1 / inf is meant
def test_gates_far_from_zero_are_open_or_closed():
    from harness.models.fused.gated_activation import silu_mul

    assert silu_mul(torch.tensor([[200.0, -200.0, 3.0, 3.0]], device=DEVICE)).tolist() == [[600.0, 0.0]]


@pytest.mark.parametrize("dtype", [*DTYPES, torch.bfloat16], ids=str)
def test_the_twin_of_the_gate_rounds_as_transformers_does(dtype: torch.dtype):
    gate_up = normal(5, 126, dtype=dtype, scale=3)
    same(reference_silu_mul(gate_up), ACT2FN["silu"](gate_up[:, :63]) * gate_up[:, 63:])


def test_what_the_gate_would_misread_is_refused():
    from harness.models.fused.gated_activation import silu_mul

    with pytest.raises(ValueError, match=r"gate_up must be \[N, 2 I\], found \[3, 7\]"):
        silu_mul(normal(3, 7))
    with pytest.raises(ValueError, match="without gaps"):
        silu_mul(normal(8, 3).T)


TOKEN_IDS = torch.tensor([5, 0, 5, 8], device=DEVICE)
POSITIONS = torch.tensor([0, 3, 1, 0], device=DEVICE)


def joined_inputs(hidden_size: int, dtype: torch.dtype):
    table, features = normal(9, hidden_size, seed=1, dtype=dtype), normal(4, hidden_size, seed=2, dtype=dtype, scale=3)
    weights = [1 + normal(hidden_size, seed=seed, dtype=dtype, scale=0.2) for seed in (3, 4)]
    return table, features, ((weights[0], 1e-5), (weights[1], 1e-3))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("positions", [None, POSITIONS], ids=["all", "none at position 0"])
@pytest.mark.parametrize("has_norms", [False, True], ids=["plain", "normed"])
@pytest.mark.parametrize("hidden_size", [1, 63, 256])
def test_joined_embeddings_equal_their_twin(hidden_size: int, has_norms: bool, positions, dtype: torch.dtype):
    """Each half has its own source, weight and eps; an embedding at position 0 is 0 behind its norm too."""
    from harness.models.fused.join_embedded import join_embedded as kernel

    table, features, norms = joined_inputs(hidden_size, dtype)
    given = norms if has_norms else None
    with poisoned_allocations():
        joined, normed = kernel(TOKEN_IDS, table, features, given, positions)
    expected_joined, expected_normed = join_embedded(TOKEN_IDS, table, features, given, positions)
    if has_norms:
        assert_rounded_alike(joined, expected_joined, 2, HALF_UNIT * (hidden_size + 8))
        assert_rounded_alike(normed, expected_normed, 2, HALF_UNIT * (hidden_size + 8))
        same(joined[:, hidden_size:], normed)
    else:
        same(joined, expected_joined)
        assert normed is features
    if positions is not None:
        assert not joined[POSITIONS == 0, :hidden_size].any() and bool(joined[1, :hidden_size].any())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_twin_is_made_of_parts(dtype: torch.dtype):
    table, features, norms = joined_inputs(63, dtype)
    joined, normed = join_embedded(TOKEN_IDS, table, features, norms)
    same(joined[:, :63], add_rms_norm(table[TOKEN_IDS], None, *norms[0])[0])
    same(normed, add_rms_norm(features, None, *norms[1])[0])


@pytest.mark.gpu
@pytest.mark.parametrize("num_tokens", [1, 16, 64, 2048])
@pytest.mark.parametrize("head", ["eagle", "eagle3", "mtp"])
def test_real_sizes(head: str, num_tokens: int):
    from harness.models.fused.join_embedded import join_embedded as kernel

    table, features = (normal(num_tokens, 4096, seed=seed, dtype=torch.bfloat16) for seed in (1, 2))
    token_ids = torch.arange(num_tokens, device=DEVICE).flip(0)
    norms = None if head == "eagle" else ((1 + table[0] / 8, 1e-5), (1 - table[0] / 8, 1e-6))
    positions = token_ids % 3 + (num_tokens == 1) if head == "mtp" else None
    found = kernel(token_ids, table, features, norms, positions)
    for one, other in zip(found, join_embedded(token_ids, table, features, norms, positions), strict=True):
        assert_rounded_alike(one, other, 2, HALF_UNIT * (4096 + 8))


def test_what_the_join_would_misread_is_refused():
    """By both, so that heads on a CPU show what a GPU would refuse."""
    from harness.models.fused.join_embedded import join_embedded as kernel

    table, features, norms = joined_inputs(8, torch.float32)
    for join in (kernel, join_embedded):
        with pytest.raises(ValueError, match=r"features must be \[4, 8\] torch.float32 without gaps, found \[3, 8\]"):
            join(TOKEN_IDS, table, features[:3])
        with pytest.raises(ValueError, match=r"token_ids must be \[4\] torch.int64 without gaps, .* strides \(2,\)"):
            join(TOKEN_IDS.repeat_interleave(2)[::2], table, features)
        with pytest.raises(ValueError, match=r"positions must be \[4\] torch.int64"):
            join(TOKEN_IDS, table, features, None, POSITIONS[:2])
        with pytest.raises(ValueError, match=r"weight must be \[8\] torch.float32"):
            join(TOKEN_IDS, table, features, (norms[0], (norms[1][0][:4], 1e-5)))
