"""Embeddings beside features, by the kernel and its twin, with the norms of a head and without them."""

from __future__ import annotations

import pytest
import torch

from harness.models.fused.reference import add_rms_norm, join_embedded
from tests.support.fused_rows import DEVICE, DTYPES, HALF_UNIT, assert_rounded_alike, normal, same
from tests.support.kernel_rounds import poisoned_allocations

TOKEN_IDS = torch.tensor([5, 0, 5, 8], device=DEVICE)
POSITIONS = torch.tensor([0, 3, 1, 0], device=DEVICE)


def inputs(hidden_size: int, dtype: torch.dtype):
    table, features = normal(9, hidden_size, seed=1, dtype=dtype), normal(4, hidden_size, seed=2, dtype=dtype, scale=3)
    weights = [1 + normal(hidden_size, seed=seed, dtype=dtype, scale=0.2) for seed in (3, 4)]
    return table, features, ((weights[0], 1e-5), (weights[1], 1e-3))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("positions", [None, POSITIONS], ids=["all", "none at position 0"])
@pytest.mark.parametrize("has_norms", [False, True], ids=["plain", "normed"])
@pytest.mark.parametrize("hidden_size", [1, 63, 256])
def test_kernel_equals_its_twin(hidden_size: int, has_norms: bool, positions, dtype: torch.dtype):
    """Each half has its own source, weight and eps; an embedding at position 0 is 0 behind its norm too."""
    from harness.models.fused.join_embedded import join_embedded as kernel

    table, features, norms = inputs(hidden_size, dtype)
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
    table, features, norms = inputs(63, dtype)
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


def test_what_would_be_misread_is_refused():
    """By both, so that heads on a CPU show what a GPU would refuse."""
    from harness.models.fused.join_embedded import join_embedded as kernel

    table, features, norms = inputs(8, torch.float32)
    for join in (kernel, join_embedded):
        with pytest.raises(ValueError, match=r"features must be \[4, 8\] torch.float32 without gaps, found \[3, 8\]"):
            join(TOKEN_IDS, table, features[:3])
        with pytest.raises(ValueError, match=r"token_ids must be \[4\] torch.int64 without gaps, .* strides \(2,\)"):
            join(TOKEN_IDS.repeat_interleave(2)[::2], table, features)
        with pytest.raises(ValueError, match=r"positions must be \[4\] torch.int64"):
            join(TOKEN_IDS, table, features, None, POSITIONS[:2])
        with pytest.raises(ValueError, match=r"weight must be \[8\] torch.float32"):
            join(TOKEN_IDS, table, features, (norms[0], (norms[1][0][:4], 1e-5)))
