"""The fused attention against its twin, and the twin against attention over a slot view."""

from __future__ import annotations

import pytest
import torch

from harness.models.attention import slots_attention
from harness.models.fused.reference import slot_attention as reference_slot_attention
from harness.models.fused.tree_rows import TreeRows
from harness.models.slot_cache import causal_mask
from harness.models.tree_places import TreePlaces, ancestors, tree_mask
from tests.support.fused_rows import DEVICE, DTYPES, Rows, attention_error, check_attention, normal, rows_of

# Two rows of one slot, two of a spare slot, and one that fills its slot.
SLOTS = [2, 0, 0, 3, 3]


def starts_of(capacity: int, num_tokens: int) -> list[int]:
    return [capacity - num_tokens, 0, num_tokens, 1, 1]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("num_tokens", "num_heads", "num_key_heads", "width"),
    [(1, 6, 2, 16), (3, 6, 2, 8), (4, 4, 1, 64)],
    ids=["one token", "narrow heads", "one key head"],
)
def test_kernel_equals_its_twin(num_tokens: int, num_heads: int, num_key_heads: int, width: int, dtype: torch.dtype):
    capacity = 37
    shape = (4, num_key_heads, capacity, width)
    rows = rows_of(SLOTS, starts_of(capacity, num_tokens), shape, num_filled=num_tokens, dtype=dtype)
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


def test_twin_equals_attention_over_a_slot_view():
    num_tokens, capacity = 3, 21
    rows = rows_of(SLOTS, starts_of(capacity, num_tokens), (4, 2, capacity, 8), num_filled=num_tokens)
    queries = normal(len(SLOTS), num_tokens, 6, 8, seed=4)
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


def test_what_would_be_misread_is_refused():
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
