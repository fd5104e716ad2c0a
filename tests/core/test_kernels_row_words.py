"""Rows that begin anywhere in a word: the logits are those of plain loads, to the bit, and -inf behind the row."""

import pytest
import torch
import triton
import triton.language as tl

from kernels.rows.unaligned import load_logits, load_row, read_in_words
from tests.support.kernel_rounds import DEVICE

TILE = 64


@triton.jit
def _load_kernel(rows, found, num_tokens, in_words, TILE: tl.constexpr):
    offsets = tl.arange(0, TILE)
    tl.store(found + offsets, load_logits(rows, offsets, num_tokens, in_words))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_every_place_in_a_word_and_every_end(dtype: torch.dtype):
    """Would catch a word that is left out, a shift by the wrong part, and a token of the next row."""
    memory = torch.randn(4 * TILE, generator=torch.Generator().manual_seed(1)).to(DEVICE, dtype)
    for place in range(9):
        for num_tokens in (0, 1, *range(TILE - 9, TILE + 1)):
            found = torch.empty(TILE, device=DEVICE)
            _load_kernel[(1,)](memory[place:], found, num_tokens, 16, TILE=TILE)
            expected = torch.full((TILE,), -float("inf"), device=DEVICE)
            expected[:num_tokens] = memory[place : place + num_tokens].float()
            assert torch.equal(found, expected), (place, num_tokens)


@triton.jit
def _load_row_kernel(rows, found, num_tokens, lead, TILE: tl.constexpr):
    places = tl.arange(0, TILE)
    tl.store(found + places, load_row(rows, places, num_tokens, None, lead))


@triton.jit
def _load_behind_kernel(rows, found, num_tokens, before, TILE: tl.constexpr):
    offsets = tl.arange(0, TILE)
    tl.store(found + offsets, load_logits(rows, offsets, num_tokens, 16, before))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("way", ["from its own word", "beside a row with a lead"])
def test_places_that_count_from_a_word_before_the_row(way: str, dtype: torch.dtype):
    """Would catch a token of the row before, or of the next one, that is taken for one of the row's."""
    memory = torch.randn(4 * TILE, generator=torch.Generator().manual_seed(2)).to(DEVICE, dtype)
    memory[:16], group = float("nan"), 16 // memory.element_size()
    for start in range(16, 16 + group):
        befores = [start % group] if way == "from its own word" else range(group)
        for before in befores:
            for num_tokens in (1, 2, TILE - 11, TILE - before - 1, TILE - before):
                found = torch.empty(TILE, device=DEVICE)
                if way == "from its own word":
                    _load_row_kernel[(1,)](memory[start:], found, num_tokens, 16, TILE=TILE)
                else:
                    _load_behind_kernel[(1,)](memory[start:], found, num_tokens, before, TILE=TILE)
                expected = torch.full((TILE,), -float("inf"), device=DEVICE)
                expected[before : before + num_tokens] = memory[start : start + num_tokens].float()
                assert torch.equal(found, expected), (start, before, num_tokens)


def test_rows_on_words_are_read_as_they_are():
    rows = torch.empty(2, 320, dtype=torch.bfloat16)
    assert read_in_words(rows, 320) is None
    assert read_in_words(rows[:, :319], 320) is not None and read_in_words(rows[:, 1:], 320) is not None
    assert read_in_words(rows, 321) is not None and read_in_words(rows[:, :255], 321) is None
