"""The bit masks of one round, as the sampling core takes them: asked for by request, written together."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from harness.engine.constraint.matcher import Matcher, Reach, Walk

BITS_PER_WORD = 32


class Masks:
    """Room for the masks of a round; `clear` before the next one."""

    def __init__(self, most: int, vocab_size: int, is_pinned: bool = False, num_rows: int = 0) -> None:
        """num_rows: room for so many numbers of masks, which reach a device together with the masks."""
        num_words = -(-vocab_size // BITS_PER_WORD)
        self._num_ahead = words_ahead(num_rows)
        self._memory = torch.empty(self._num_ahead + most * num_words, dtype=torch.int32, pin_memory=is_pinned)
        self._numbers = self._memory[: self._num_ahead].view(torch.int64).numpy()
        self._words = self._memory[self._num_ahead :].view(most, num_words)
        self._waiting: list[Walk] = []
        self._reaches: dict[int, Reach] = {}
        self.num_masks = 0

    @property
    def words(self) -> Tensor:
        """[num_masks, ceil(V / 32)] int32, on the host; writes what has been asked for and is not there yet."""
        self.write()
        return self._words[: self.num_masks]

    def write(self) -> None:
        """Write what has been asked for."""
        if self._waiting:
            reaches = self._waiting[0].matcher.fill_together(self._waiting, self._words)
            self._reaches.update({walk.first: reach for walk, reach in zip(self._waiting, reaches, strict=True)})
            self._waiting.clear()

    def reach(self, first: int) -> Reach:
        """How far the walk came whose first mask has this number; writes what has been asked for."""
        if self._waiting:
            self.write()
        return self._reaches[first]

    def packed(self, rows: Sequence[int]) -> Tensor:
        """Numbers of masks, [R] int64, and behind them the masks: one piece of memory, as `unpacked` reads it."""
        self._numbers[: len(rows)] = rows
        return self._memory[: self._num_ahead + self.words.numel()]

    def clear(self) -> None:
        self.num_masks = 0
        self._waiting.clear()
        self._reaches.clear()

    def add(self, matcher: Matcher, token_ids: Sequence[int] = ()) -> int:
        """Ask for what may come next, and after each of some tokens up to the first that the matcher refuses.

        Masks are written by `write` or the next use of `words` or `reach`; until then the matcher must not move.

        Returns:
            The number of the first mask, whose `reach` says how many follow it.
        """
        first = self.num_masks
        self._waiting.append(Walk(matcher, first, token_ids))
        self.num_masks += len(token_ids) + 1
        return first


ALIGNED = 32
"""Masks begin at a multiple of so many words, for which kernels are specialized."""


def words_ahead(num_rows: int) -> int:
    """Words that so many numbers of masks take ahead of the masks."""
    return -(-2 * num_rows // ALIGNED) * ALIGNED


def unpacked(memory: Tensor, num_rows: int, vocab_size: int) -> tuple[Tensor, Tensor]:
    """Views of what `Masks.packed` left: [num_rows] int64, and [M, ceil(V / 32)] int32."""
    ahead = words_ahead(num_rows)
    return memory[:ahead].view(torch.int64)[:num_rows], memory[ahead:].view(-1, -(-vocab_size // BITS_PER_WORD))
