"""The bit masks of one round, written on the host one after the other, as the sampling core takes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor


class Matcher(Protocol):
    """A grammar and how far into it an answer has come: what the policies ask of it."""

    @property
    def is_complete(self) -> bool:
        """Whether the answer is complete and only the end of sequence can follow."""
        ...

    def accept(self, token_ids: Sequence[int]) -> int:
        """Advance over the longest prefix of the tokens that the grammar allows; returns its length."""
        ...

    def rollback(self, num_tokens: int) -> None:
        """Roll back so many accepted tokens."""
        ...

    def fill(self, words: Tensor) -> None:
        """Write which tokens may come next: [ceil(V / 32)] int32 on the host, bit v % 32 of word v // 32. An end of
        sequence may come where the answer is whole."""
        ...


BITS_PER_WORD = 32
FREE = -1
"""In the place of a mask's number: everything is allowed."""


class Masks:
    """Room for the masks of a round; `clear` before the next one."""

    def __init__(self, most: int, vocab_size: int, is_pinned: bool = False) -> None:
        num_words = -(-vocab_size // BITS_PER_WORD)
        self._words = torch.empty(most, num_words, dtype=torch.int32, pin_memory=is_pinned)
        self.num_masks = 0

    @property
    def words(self) -> Tensor:
        """[num_masks, ceil(V / 32)] int32, on the host."""
        return self._words[: self.num_masks]

    def clear(self) -> None:
        self.num_masks = 0

    def add(self, matcher: Matcher) -> int:
        """Write what may come next; returns the number of the mask."""
        matcher.fill(self._words[self.num_masks])
        self.num_masks += 1
        return self.num_masks - 1


def words_of(token_ids: Tensor, vocab_size: int) -> Tensor:
    """The mask that allows just these tokens: [ceil(V / 32)] int32 on the host."""
    words = torch.zeros(-(-vocab_size // BITS_PER_WORD), dtype=torch.int64)
    token_ids = token_ids.cpu().unique()
    words.index_add_(0, token_ids // BITS_PER_WORD, 1 << (token_ids % BITS_PER_WORD))
    return words.to(torch.int32)
