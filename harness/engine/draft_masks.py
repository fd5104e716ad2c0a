"""Drafts in the answer are drawn under the grammar's mask: the host looks at each before the next is drawn."""

from __future__ import annotations

import time
from collections.abc import Mapping

import torch
from torch import Tensor

from harness.constraint.grammar_state import GrammarState
from harness.constraint.lookahead import Lookahead
from harness.constraint.masks import FREE, Masks
from kernels.contract import TokenMask


class ConstrainedDrafts:
    """The masks of one round's drafts; see harness.drafters.protocol.DraftMasks.

    Shapes: B rows, K draft tokens.
    """

    def __init__(
        self,
        grammar_states: Mapping[int, GrammarState],
        masks: Masks,
        num_rows: int,
        num_tokens: int,
        device: torch.device,
    ) -> None:
        """grammar states: by slot, all of them in the answer."""
        self.lookaheads: dict[int, Lookahead] = {
            slot: grammar_state.lookahead() for slot, grammar_state in grammar_states.items()
        }
        self.target_rows: dict[int, list[int]] = {slot: [] for slot in grammar_states}
        """By slot, the masks of the positions so far: those of the target are the same."""
        self._grammar_states = grammar_states
        self._masks = masks
        self.rows = torch.full((num_rows, num_tokens), FREE, dtype=torch.int64)
        """[B, K], the masks of the drafts so far."""
        self._device = device

    def before(self, step: int, own_words: Tensor | None) -> TokenMask:
        began = time.perf_counter()
        for slot, lookahead in self.lookaheads.items():
            row = lookahead.row(self._masks)
            self.target_rows[slot].append(row)
            self.rows[slot, step] = row if self._can_draw(row, own_words) else FREE
        self._spend(began)
        return self._mask(self.rows[:, step])

    def after(self, token_ids: Tensor) -> None:
        drawn = token_ids.tolist()
        began = time.perf_counter()
        for slot, lookahead in self.lookaheads.items():
            lookahead.take(drawn[slot])
        self._spend(began)

    def cached(self) -> TokenMask:
        return self._mask(self.rows)

    def _can_draw(self, row: int, own_words: Tensor | None) -> bool:
        """Whether the drafter knows an allowed token; where it does not, it draws freely and is rejected."""
        return row == FREE or own_words is None or bool((self._masks.words[row] & own_words).any())

    def _mask(self, rows: Tensor) -> TokenMask:
        return TokenMask(self._masks.words.to(self._device), rows.to(self._device))

    def _spend(self, began: float) -> None:
        share_s = (time.perf_counter() - began) / max(1, len(self._grammar_states))
        for grammar_state in self._grammar_states.values():
            grammar_state.spend(share_s)
