"""Attention over folded query heads must equal attention with every key head repeated."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from harness.models.attention import fold_mask, slots_attention


def tensors(num_queries, num_keys, num_heads=6, num_key_heads=2):
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(2, num_heads, num_queries, 8, generator=generator)
    key, value = (torch.randn(2, num_key_heads, num_keys, 8, generator=generator) for _ in range(2))
    return query, key, value


def repeated(query, key, value, mask):
    """[B, T, H, D] by repeating the key heads; mask True may be seen."""
    group = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
    scores = (query @ key.transpose(-1, -2) / 8**0.5).masked_fill(~mask, float("-inf"))
    return (scores.softmax(-1) @ value).transpose(1, 2)


@pytest.mark.parametrize("num_queries", [1, 4], ids=["one query", "four queries"])
@pytest.mark.parametrize("num_key_heads", [1, 2, 6], ids=["one key head", "grouped", "as many key heads"])
@pytest.mark.parametrize("kind", ["additive", "bool", "folded"])
def test_masked_attention_equals_repeated_keys(num_queries, num_key_heads, kind):
    query, key, value = tensors(num_queries, 9, num_key_heads=num_key_heads)
    seen = torch.rand(2, 1, num_queries, 9, generator=torch.Generator().manual_seed(1)) < 0.6
    seen[..., 0] = True
    mask = seen if kind == "bool" else torch.zeros(seen.shape).masked_fill(~seen, float("-inf"))
    if kind == "folded":
        mask = fold_mask(mask, 6 // num_key_heads, num_queries)
    found, weights = slots_attention(torch.nn.Module(), query, key, value, mask, scaling=8**-0.5)
    torch.testing.assert_close(found, repeated(query, key, value, seen))
    assert weights is None and found.shape == (2, num_queries, 6, 8)


@pytest.mark.parametrize("num_tokens", [1, 7])
def test_no_mask_is_causal(num_tokens):
    query, key, value = tensors(num_tokens, num_tokens)
    found, _ = slots_attention(torch.nn.Module(), query, key, value, None, scaling=8**-0.5)
    causal = torch.ones(num_tokens, num_tokens).tril().bool()
    torch.testing.assert_close(found, repeated(query, key, value, causal))


def test_no_mask_with_more_keys_than_queries_is_refused():
    query, key, value = tensors(2, 5)
    with pytest.raises(ValueError, match="2 queries and 5 keys"):
        slots_attention(torch.nn.Module(), query, key, value, None)


def test_a_mask_shared_by_all_rows_is_broadcast():
    query, key, value = tensors(3, 5)
    seen = torch.ones(3, 5).tril(2).bool()
    found, _ = slots_attention(torch.nn.Module(), query, key, value, seen[None, None], scaling=8**-0.5)
    torch.testing.assert_close(found, repeated(query, key, value, seen))


def test_gradients_flow_through_the_folded_form():
    query, key, value = (tensor.requires_grad_() for tensor in tensors(3, 3))
    causal = torch.ones(3, 3).tril().bool()[None, None]
    masked = torch.autograd.grad(
        slots_attention(torch.nn.Module(), query, key, value, causal, scaling=0.3)[0].square().sum(), query
    )
    free = torch.autograd.grad(
        slots_attention(torch.nn.Module(), query, key, value, None, scaling=0.3)[0].square().sum(), query
    )
    torch.testing.assert_close(masked, free)
    assert functional.normalize(masked[0], dim=-1).isfinite().all()
