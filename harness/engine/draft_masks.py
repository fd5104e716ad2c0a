"""Drafts behind the boundary are drawn under the grammar's mask: the host looks at each before the next is drawn."""

from __future__ import annotations

import time
from collections.abc import Mapping

import torch
from torch import Tensor

from harness.constraint.guard import Guard
from harness.constraint.masks import FREE, Masks
from harness.constraint.walk import Walk
from kernels.contract import TokenMask


class GuardedDrafts:
    """The masks of one round's drafts; see harness.drafters.protocol.DraftMasks.

    Letters: B rows, K draft tokens.
    """

    def __init__(
        self, guards: Mapping[int, Guard], masks: Masks, num_rows: int, num_tokens: int, device: torch.device
    ) -> None:
        """guards: by slot, all of them behind the boundary."""
        self.walks: dict[int, Walk] = {slot: guard.walk() for slot, guard in guards.items()}
        self.target_rows: dict[int, list[int]] = {slot: [] for slot in guards}
        """By slot, the masks of the positions so far: those of the target are the same."""
        self._guards = guards
        self._masks = masks
        self.rows = torch.full((num_rows, num_tokens), FREE, dtype=torch.int64)
        """[B, K], the masks of the drafts so far."""
        self._device = device

    def before(self, step: int, own_words: Tensor | None) -> TokenMask:
        began = time.perf_counter()
        for slot, walk in self.walks.items():
            row = walk.row(self._masks)
            self.target_rows[slot].append(row)
            self.rows[slot, step] = row if self._can_draw(row, own_words) else FREE
        self._spend(began)
        return self._mask(self.rows[:, step])

    def after(self, token_ids: Tensor) -> None:
        drawn = token_ids.tolist()
        began = time.perf_counter()
        for slot, walk in self.walks.items():
            walk.take(drawn[slot])
        self._spend(began)

    def cached(self) -> TokenMask:
        return self._mask(self.rows)

    def _can_draw(self, row: int, own_words: Tensor | None) -> bool:
        """Whether the drafter knows an allowed token; where it does not, it draws freely and is rejected."""
        return row == FREE or own_words is None or bool((self._masks.words[row] & own_words).any())

    def _mask(self, rows: Tensor) -> TokenMask:
        return TokenMask(self._masks.words.to(self._device), rows.to(self._device))

    def _spend(self, began: float) -> None:
        share_s = (time.perf_counter() - began) / max(1, len(self._guards))
        for guard in self._guards.values():
            guard.spend(share_s)
