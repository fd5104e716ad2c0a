"""The fused rotation and attention against their twins, and the twins against transformers and slot views."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRMSNorm, LlamaRotaryEmbedding, apply_rotary_pos_emb

from harness.models.attention import slots_attention
from harness.models.fused.reference import rotate_and_store as reference_rotate_and_store
from harness.models.fused.reference import slot_attention as reference_slot_attention
from harness.models.fused.rope_table import rope_table
from harness.models.fused.tree_rows import TreeRows
from harness.models.slot_cache import causal_mask
from harness.models.tree_places import TreePlaces, ancestors, tree_mask
from tests.support.fused_rows import (
    DEVICE,
    DTYPES,
    HALF_UNIT,
    Rows,
    assert_rounded_alike,
    attention_error,
    check_attention,
    normal,
    rows_of,
    same,
)
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
def test_rotation_equals_its_twin(heads: tuple[int, int, int], with_norms: bool, dtype: torch.dtype):
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


def test_what_the_rotation_would_misread_is_refused():
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


# Two rows of one slot, two of a spare slot, and one that fills its slot.
ATTENDING_SLOTS = [2, 0, 0, 3, 3]


def starts_of(capacity: int, num_tokens: int) -> list[int]:
    return [capacity - num_tokens, 0, num_tokens, 1, 1]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("num_tokens", "num_heads", "num_key_heads", "width"),
    [(1, 6, 2, 16), (3, 6, 2, 8), (4, 4, 1, 64)],
    ids=["one token", "narrow heads", "one key head"],
)
def test_attention_equals_its_twin(num_tokens: int, num_heads: int, num_key_heads: int, width: int, dtype: torch.dtype):
    capacity = 37
    shape = (4, num_key_heads, capacity, width)
    rows = rows_of(ATTENDING_SLOTS, starts_of(capacity, num_tokens), shape, num_filled=num_tokens, dtype=dtype)
    check_attention(rows, num_tokens, num_heads)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_keys_shared_out_over_programs(dtype: torch.dtype):
    """One row needs every program, one begins the last program's share in the middle of its tokens, one has one key."""
    capacity, width = 300, 8
    rows = rows_of([1, 0, 2], [capacity - 3, 126, 0], (3, 1, capacity, width), num_filled=3, dtype=dtype)
    check_attention(rows, 3, 2)


@pytest.mark.parametrize("num_programs", [1, 12], ids=["one program", "two programs"])
def test_several_blocks_of_keys_in_a_program(num_programs: int, monkeypatch: pytest.MonkeyPatch):
    """The running maximum rises from block to block, so that what was summed before has to shrink."""
    from harness.models.fused import attention_tilings as module

    monkeypatch.setattr(module, "NUM_PROGRAMS", num_programs)
    rows = rows_of([1, 0, 2], [297, 126, 0], (3, 2, 300, 8), num_filled=3)
    rows.keys.mul_(torch.arange(300, device=DEVICE)[:, None] / 30)
    check_attention(rows, 3, 4)


def test_more_queries_of_a_key_head_than_a_tile_holds():
    """In float32 a tile holds 16 queries of width 128: two tiles, the second of them nearly empty."""
    check_attention(rows_of([1, 0], [40, 3], (2, 1, 50, 128), num_filled=9), 9, 2)


def test_a_cache_that_is_part_of_a_larger_one():
    whole = rows_of([1, 0], [9, 3], (2, 2, 40, 8), num_filled=2)
    check_attention(Rows(whole.keys[:, :, :16], whole.values[:, :, :16], whole.slots, whole.starts), 2, 4)


def test_a_query_beyond_the_capacity_sees_the_whole_slot():
    check_attention(rows_of([0, 1], [14, 3], (2, 1, 16, 8), num_filled=4), 4, 2)


WINDOWED = [1, 4, 64, 65, 400]
"""Places that a query sees: its own alone, to more than a slot holds."""


@pytest.mark.parametrize("extra", ["windows", "sinks", "softcap", "all"])
@pytest.mark.parametrize(("num_programs", "dtype"), [(132, torch.float32), (1, torch.float16)], ids=["many", "one"])
def test_windows_sinks_and_soft_caps(
    extra: str, num_programs: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
):
    """Rows of other windows, whose keys begin in the middle of a block, and programs all of whose keys lie before them.

    Would catch a sink that counts once for each program, and a program whose share begins before a window."""
    from harness.models.fused import attention_tilings as module

    monkeypatch.setattr(module, "NUM_PROGRAMS", num_programs)
    capacity, num_tokens, num_heads = 300, 3, 4
    starts = [capacity - num_tokens, 126, 0, 200, 77]
    rows = rows_of([1, 0, 2, 3, 4], starts, (5, 2, capacity, 8), num_filled=num_tokens, dtype=dtype)
    # sinks from far below all products to above them
    extras = {
        "windows": torch.tensor(WINDOWED, device=DEVICE),
        "sinks": torch.tensor([-30.0, 0.0, 2.0, 9.0], device=DEVICE, dtype=dtype),
        "softcap": 1.5,
    }
    check_attention(rows, num_tokens, num_heads, **(extras if extra == "all" else {extra: extras[extra]}))


def test_a_query_beyond_the_capacity_sees_the_window_at_its_end():
    rows = rows_of([0, 1], [14, 3], (2, 1, 16, 8), num_filled=4)
    check_attention(rows, 4, 2, windows=torch.tensor([2, 2], device=DEVICE))


def test_twin_equals_attention_over_a_slot_view():
    num_tokens, capacity = 3, 21
    rows = rows_of(ATTENDING_SLOTS, starts_of(capacity, num_tokens), (4, 2, capacity, 8), num_filled=num_tokens)
    queries = normal(len(ATTENDING_SLOTS), num_tokens, 6, 8, seed=4)
    positions = rows.starts[:, None] + torch.arange(num_tokens, device=DEVICE)
    mask = causal_mask(positions, capacity, torch.float32)
    keys, values = (tensor.nan_to_num(nan=1e4)[rows.slots] for tensor in (rows.keys, rows.values))
    attended, _ = slots_attention(torch.nn.Module(), queries.transpose(1, 2), keys, values, mask, 0.3)
    relative, absolute = attention_error(queries, rows, 0.3)
    found = reference_slot_attention(queries, *rows, 0.3)
    torch.testing.assert_close(found, attended.flatten(2), rtol=relative, atol=absolute)


@pytest.mark.parametrize(
    ("num_rows", "num_folded", "capacity", "large", "plain"),
    [
        (16, 16, 2048, (16, 1, 128, 1, 3, 4), (16, 1, 64, 1, 3, 4)),
        (64, 16, 2048, (16, 1, 64, 1, 4, 4), (16, 1, 64, 1, 3, 4)),
        (8, 16, 2048, (16, 1, 128, 2, 3, 4), (16, 1, 64, 2, 3, 4)),
        (1, 24, 2048, (32, 1, 128, 16, 3, 8), (32, 1, 64, 16, 3, 4)),
        (1, 24, 300, (32, 1, 128, 3, 3, 8), (32, 1, 64, 5, 3, 4)),
        (16, 72, 2048, (64, 2, 64, 1, 3, 4), (64, 2, 64, 1, 3, 8)),
        (8, 64, 2048, (64, 1, 128, 2, 3, 8), (64, 1, 64, 2, 3, 8)),
        (8, 64, 1152, (64, 1, 128, 1, 3, 8), (64, 1, 64, 1, 3, 8)),
        (1, 64, 700, (64, 1, 128, 6, 3, 8), (64, 1, 64, 11, 3, 8)),
    ],
    ids=["16 rows", "64 rows", "8 rows", "one row", "short", "two tiles", "long prompts", "short prompts", "a tree"],
)
def test_work_is_cut_to_fill_a_gpu(num_rows: int, num_folded: int, capacity: int, large: tuple, plain: tuple):
    """Rows and number of tiles, keys of a block, programs that share keys, blocks in work, warps: of 8 key heads of
    width 128 in a 2-byte type, on GPUs with much shared memory and on others."""
    from harness.models.fused.attention_tilings import tiling_of

    assert tiling_of(num_rows, 8, num_folded, 128, capacity, 2, has_large_memory=True) == large
    assert tiling_of(num_rows, 8, num_folded, 128, capacity, 2, has_large_memory=False) == plain


def test_what_attention_would_misread_is_refused():
    from harness.models.fused.slot_attention import slot_attention

    rows = rows_of([0, 1], [2, 3], (2, 2, 16, 8), num_filled=2)
    with pytest.raises(ValueError, match=r"a multiple of 2 heads, found \[2, 2, 3, 8\]"):
        slot_attention(normal(2, 2, 3, 8), *rows, 1.0)
    with pytest.raises(
        ValueError, match=r"queries must be \[2, 2, 4, 8\] torch.float32 without gaps, found \[3, 2, 4, 8\]"
    ):
        slot_attention(normal(3, 2, 4, 8), *rows, 1.0)
    with pytest.raises(ValueError, match=r"queries must be bfloat16, float16 or float32, found torch\.float64"):
        slot_attention(normal(2, 2, 4, 8).double(), *rows, 1.0)
    with pytest.raises(ValueError, match=r"out must be \[2, 2, 32\] torch.float32 without gaps, found \[2, 4, 32\]"):
        slot_attention(normal(2, 2, 4, 8), *rows, 1.0, out=torch.zeros(2, 4, 32, device=DEVICE))
    with pytest.raises(ValueError, match=r"windows must be \[2\] torch.int64 without gaps, found \[1\]"):
        slot_attention(normal(2, 2, 4, 8), *rows, 1.0, windows=rows.starts[:1])
    with pytest.raises(ValueError, match=r"sinks must be \[4\] torch.float32 without gaps, found \[2\]"):
        slot_attention(normal(2, 2, 4, 8), *rows, 1.0, sinks=normal(2))
    with pytest.raises(ValueError, match=r"softcap must be above 0, found 0\.0"):
        slot_attention(normal(2, 2, 4, 8), *rows, 1.0, softcap=0.0)
    with pytest.raises(ValueError, match="windows must be None for trees"):
        slot_attention(normal(2, 2, 4, 8), *rows, 1.0, tree_rows(2, 2, rows.starts), windows=rows.starts)
    with pytest.raises(ValueError, match="slots must name one slot at least"):
        slot_attention(normal(0, 2, 4, 8), rows.keys, rows.values, rows.slots[:0], rows.starts[:0], 1.0)


@pytest.mark.parametrize("num_nodes", [1, 64])
def test_a_tree_of_more_nodes_than_a_mask_has_bits_or_fewer_than_tokens_is_refused(num_nodes: int):
    """Would catch nodes whose bit is that of another, or none: the kernel cannot tell."""
    from harness.models.fused.slot_attention import slot_attention

    rows = rows_of([0, 1], [61, 62], (2, 2, 80, 8), num_filled=2)
    tree = tree_rows(2, 2, rows.starts)
    slot_attention(normal(2, 2, 4, 8), *rows, 1.0, tree._replace(num_nodes=63))
    with pytest.raises(ValueError, match=f"num_nodes must be from 2, .* to 63, .* found {num_nodes}$"):
        slot_attention(normal(2, 2, 4, 8), *rows, 1.0, tree._replace(num_nodes=num_nodes))


UNEVEN = torch.tensor([-1, 0, 0, 2, 2, 0, 4, 6, 3])
"""Parents of the nodes of a tree: the first is the last token of the context."""


def tree_rows(num_tokens: int, num_rows: int, starts: torch.Tensor) -> TreeRows:
    """Of the last nodes of a tree; the first row is a chain."""
    sees = ancestors(UNEVEN).expand(num_rows, -1, -1).clone()
    sees[0] = torch.ones_like(sees[0]).tril()
    positions = starts[:, None].cpu() + sees.sum(-1)[:, -num_tokens:]
    return TreeRows.of(sees[:, -num_tokens:].to(DEVICE), positions.to(DEVICE))


@pytest.mark.parametrize("num_tokens", [9, 4], ids=["a whole tree", "its last level"])
@pytest.mark.parametrize(("num_programs", "dtype"), [(132, torch.float32), (1, torch.float16)], ids=["many", "one"])
def test_nodes_of_trees_see_their_ancestors(
    num_tokens: int, num_programs: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
):
    """Keys shared out over programs, one of which may have none that a token sees; one tree begins its slot."""
    from harness.models.fused import attention_tilings as module

    monkeypatch.setattr(module, "NUM_PROGRAMS", num_programs)
    starts = [126, 9 - num_tokens, 300 - num_tokens]
    rows = rows_of([1, 0, 2], starts, (3, 2, 300, 8), num_filled=num_tokens, dtype=dtype)
    check_attention(rows, num_tokens, 4, tree_rows(num_tokens, 3, rows.starts))


def test_twin_sees_what_the_mask_of_a_tree_shows():
    capacity = 40
    rows = rows_of([1, 0, 2], [20, 0, 31], (3, 2, capacity, 8), num_filled=9)
    tree = tree_rows(9, 3, rows.starts)
    sees = ancestors(UNEVEN).expand(3, -1, -1).clone()
    sees[0] = torch.ones_like(sees[0]).tril()
    places = TreePlaces(rows.starts, torch.arange(9, device=DEVICE), sees.to(DEVICE))
    expected = tree_mask(places, capacity, torch.float32)[:, 0] == 0
    assert torch.equal(tree.visible(rows.starts, capacity), expected)
    assert not torch.equal(expected[1], expected[0])


def test_a_tree_of_more_nodes_than_a_mask_has_bits_is_refused():
    with pytest.raises(ValueError, match="at most 63 nodes of a tree for fused layers, found 64"):
        TreeRows.of(torch.ones(2, 64, dtype=torch.bool), torch.zeros(1, 2, dtype=torch.int64))
