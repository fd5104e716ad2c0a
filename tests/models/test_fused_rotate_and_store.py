"""The fused rotation against its twin, and the twin and its table against transformers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRMSNorm, LlamaRotaryEmbedding, apply_rotary_pos_emb

from harness.models.fused.reference import rotate_and_store as reference_rotate_and_store
from harness.models.fused.rope_table import rope_table
from tests.support.fused_rows import DEVICE, DTYPES, HALF_UNIT, Rows, assert_rounded_alike, normal, rows_of, same
from tests.support.kernel_rounds import poisoned_allocations
from tests.support.tiny_models import LLAMA3_ROPE

CAPACITY = 19
# Two rows of one slot, the second where the first ends; two rows of a spare slot; the last token that a slot can hold.
SLOTS, STARTS, NUM_TOKENS = [2, 0, 0, 3, 3], [CAPACITY - 3, 4, 7, 0, 0], 3
EPS = 1e-5


def table_of(width: int, num_positions: int = CAPACITY + 2) -> Tensor:
    return rope_table(rotary_of(width), num_positions, DEVICE)


def rotary_of(width: int, **rope: Any) -> LlamaRotaryEmbedding:
    parameters = {"rope_type": "default", "rope_theta": 100.0} | rope
    return LlamaRotaryEmbedding(LlamaConfig(head_dim=width, rope_parameters=parameters)).to(DEVICE)


def norms_of(width: int, dtype: torch.dtype) -> dict[str, Any]:
    query_norm, key_norm = (1 + normal(width, seed=seed, dtype=dtype, scale=0.2) for seed in (5, 6))
    return {"query_norm": query_norm, "key_norm": key_norm, "eps": EPS}


def case(num_heads: int, num_key_heads: int, width: int, dtype: torch.dtype) -> tuple[Tensor, Rows]:
    """A joint projection, and rows whose cache is NaN from their starts on; the spare rows hold the same tokens."""
    rows = rows_of(SLOTS, STARTS, (4, num_key_heads, CAPACITY, width), num_filled=0, dtype=dtype)
    qkv = normal(len(SLOTS), NUM_TOKENS, (num_heads + 2 * num_key_heads) * width, seed=3, dtype=dtype)
    qkv[4] = qkv[3]
    return qkv.flatten(0, 1), rows


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("with_norms", [False, True], ids=["no norms", "norms"])
@pytest.mark.parametrize("heads", [(6, 2, 8), (3, 3, 16), (2, 1, 64)], ids=["6 of 2", "3 of 3", "2 of 1"])
def test_kernel_equals_its_twin(heads: tuple[int, int, int], with_norms: bool, dtype: torch.dtype):
    from harness.models.fused.rotate_and_store import rotate_and_store

    (qkv, rows), width = case(*heads, dtype), heads[2]
    table, norms = table_of(width), norms_of(width, dtype) if with_norms else {}
    keys, values = rows.keys.clone(), rows.values.clone()
    expected = reference_rotate_and_store(qkv, table, keys, values, rows.slots, rows.starts, **norms)
    with poisoned_allocations():
        found = rotate_and_store(qkv, table, *rows, **norms)
    # The sum of squares is off by a rounding for each term; then a product or two and a sum.
    float32_error = HALF_UNIT * (width + 8)
    assert_rounded_alike(found, expected, 1, float32_error)
    written = ~keys.isnan()
    assert torch.equal(written, ~rows.keys.isnan())
    assert_rounded_alike(rows.keys[written], keys[written], 1, float32_error)
    same(rows.values, values)


def test_nodes_of_trees_turn_by_their_depth():
    """Would catch keys that are stored at their position, or turned by their place."""
    from harness.models.fused.rotate_and_store import rotate_and_store

    (qkv, rows), table = case(6, 2, 8, torch.float32), table_of(8)
    positions = rows.starts[:, None] + torch.tensor([0, 1, 1], device=DEVICE)
    by_place, twins = (rows._replace(keys=rows.keys.clone(), values=rows.values.clone()) for _ in range(2))
    expected = reference_rotate_and_store(qkv, table, *twins, positions=positions)
    with poisoned_allocations():
        found = rotate_and_store(qkv, table, *rows, positions=positions)
    assert_rounded_alike(found, expected, 1, HALF_UNIT * 16)
    assert torch.equal(rows.keys.isnan(), twins.keys.isnan())
    assert_rounded_alike(rows.keys.nan_to_num(), twins.keys.nan_to_num(), 1, HALF_UNIT * 16)
    same(rows.values, twins.values)
    chain = rotate_and_store(qkv, table, *by_place)
    same(found[:, :2], chain[:, :2])
    # the third token stands where the second does, and lies behind it
    assert not torch.equal(found[:, 2], chain[:, 2])
    shifted = rows._replace(starts=rows.starts - 1, keys=rows.keys.clone(), values=rows.values.clone())
    same(found[:2, 2], rotate_and_store(qkv, table, *shifted)[:2, 2])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_shares_are_summed_in_order_and_rounded(dtype: torch.dtype):
    from harness.models.fused.rotate_and_store import rotate_and_store

    (qkv, rows), table, norms = case(6, 2, 8, dtype), table_of(8), norms_of(8, dtype)
    shares = normal(3, *qkv.shape, seed=7)
    shares[:, -NUM_TOKENS:] = shares[:, -2 * NUM_TOKENS : -NUM_TOKENS]
    summed = ((shares[0] + shares[1]) + shares[2]).to(dtype)
    expected_rows = rows._replace(keys=rows.keys.clone(), values=rows.values.clone())
    expected = rotate_and_store(summed, table, *expected_rows, **norms)
    twins_rows = rows._replace(keys=rows.keys.clone(), values=rows.values.clone())
    twins = reference_rotate_and_store(shares, table, *twins_rows, **norms)
    with poisoned_allocations():
        found = rotate_and_store(shares, table, *rows, **norms)
    same(found, expected)
    same(rows.keys, expected_rows.keys)
    same(rows.values, expected_rows.values)
    assert_rounded_alike(found, twins, 1, HALF_UNIT * (8 + 8))
    same(rows.values, twins_rows.values)


def test_positions_beyond_the_capacity_are_not_written():
    from harness.models.fused.rotate_and_store import rotate_and_store

    for operation in (rotate_and_store, reference_rotate_and_store):
        rows = rows_of([0, 1], [CAPACITY - 1, 2], (3, 2, CAPACITY, 8), num_filled=0)
        keys = rows.keys.clone()
        operation(normal(4, 48), table_of(8), *rows)
        assert not rows.keys[0, :, -1].isnan().any() and not rows.keys[1, :, 2:4].isnan().any()
        same(rows.keys[0, :, :-1], keys[0, :, :-1])
        same(rows.keys[1, :, 4:], keys[1, :, 4:])
        same(rows.keys[2], keys[2])


@pytest.mark.parametrize(
    "rope", [{}, LLAMA3_ROPE, {"rope_type": "yarn", "factor": 4.0}], ids=["default", "llama3", "yarn"]
)
def test_twin_and_table_equal_transformers(rope: dict[str, Any]):
    """In float32, where transformers rounds nothing away; yarn has an attention scaling other than 1."""
    qkv, rows = case(6, 2, 8, torch.float32)
    rotary, norms = rotary_of(8, **rope), norms_of(8, torch.float32)
    query, key, value = qkv.view(len(SLOTS), NUM_TOKENS, -1, 8).split((6, 2, 2), dim=2)
    for_query, for_key = LlamaRMSNorm(8, EPS), LlamaRMSNorm(8, EPS)
    for_query.weight.data, for_key.weight.data = norms["query_norm"], norms["key_norm"]
    positions = rows.starts[:, None] + torch.arange(NUM_TOKENS, device=DEVICE)
    cosine, sine = rotary(qkv, positions)
    expected, expected_keys = apply_rotary_pos_emb(for_query(query), for_key(key), cosine, sine, unsqueeze_dim=2)
    found = reference_rotate_and_store(qkv, rope_table(rotary, CAPACITY, DEVICE), *rows, **norms)
    assert_rounded_alike(found, expected.detach(), 0, 16 * HALF_UNIT)
    for row, (slot, start) in enumerate(zip(SLOTS, STARTS, strict=True)):
        written = slice(start, start + NUM_TOKENS)
        found_keys = rows.keys[slot, :, written].transpose(0, 1)
        assert_rounded_alike(found_keys, expected_keys[row].detach(), 0, 16 * HALF_UNIT)
        same(rows.values[slot, :, written].transpose(0, 1), value[row])


def test_a_table_that_would_follow_the_batch_is_refused():
    with pytest.raises(ValueError, match="found rope_type 'dynamic'"):
        rope_table(rotary_of(8, rope_type="dynamic", factor=2.0), 4, DEVICE)


def test_what_would_be_misread_is_refused():
    from harness.models.fused.rotate_and_store import rotate_and_store

    qkv, rows = case(6, 2, 8, torch.float32)
    table = table_of(8)
    with pytest.raises(ValueError, match=r"a line for each of 19 positions, found \[18, 8\]"):
        rotate_and_store(qkv, table[:18], *rows)
    with pytest.raises(ValueError, match="a multiple of that many query heads; found"):
        rotate_and_store(qkv[:, :-8].contiguous(), table, *rows)
    with pytest.raises(ValueError, match=r"qkv must be \[R \* T, .* with 5 rows"):
        rotate_and_store(qkv[:-1], table, *rows)
    with pytest.raises(ValueError, match=r"must be torch\.float32 or torch\.float8_e4m3fn, found torch\.float16"):
        rotate_and_store(qkv, table, rows.keys.half(), rows.values.half(), rows.slots, rows.starts)
    with pytest.raises(ValueError, match="with the same strides"):
        rotate_and_store(qkv, table, rows.keys[:, :, :9], rows.values[:, :, :9].contiguous(), rows.slots, rows.starts)
    with pytest.raises(ValueError, match=r"slots must be \[5\] torch.int64 without gaps, found \[5\] torch.int32"):
        rotate_and_store(qkv, table, rows.keys, rows.values, rows.slots.int(), rows.starts)
    with pytest.raises(ValueError, match="must both be given or both be None"):
        rotate_and_store(qkv, table, *rows, query_norm=normal(8))
    odd = rows_of(SLOTS, STARTS, (4, 2, CAPACITY, 6), num_filled=0)
    with pytest.raises(ValueError, match="a width that is a power of two, found 6"):
        rotate_and_store(normal(15, 60), table, *odd)
