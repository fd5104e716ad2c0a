"""The masks under which a step's drafts are drawn in the answer: the host looks at each before the next is drawn."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from harness.engine.constraint.grammar_state import GrammarState
from harness.engine.constraint.lookahead import Lookahead
from harness.engine.constraint.masks import Masks
from harness.engine.constraint.matcher import FREE
from kernels.contract import TokenMask


class ConstrainedDrafts:
    """The masks of one round's drafts in the answer; see harness.drafters.protocol.DraftMasks.

    The host looks at each draft token before the next is drawn.

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
        """grammar_states: by slot, all of them in the answer."""
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
        rows = {slot: lookahead.row(self._masks) for slot, lookahead in self.lookaheads.items()}
        words = self._masks.words
        for slot, row in rows.items():
            self.target_rows[slot].append(row)
            can_draw = row == FREE or own_words is None or bool((words[row] & own_words).any())
            # a drafter that knows no allowed token draws freely and is rejected
            self.rows[slot, step] = row if can_draw else FREE
        self._spend(began)
        return self._mask(self.rows[:, step])

    def after(self, token_ids: Tensor) -> None:
        drawn = token_ids.tolist()
        began = time.perf_counter()
        for slot, lookahead in self.lookaheads.items():
            lookahead.take(drawn[slot])
        self._spend(began)

    def end(self) -> None:
        """Ask for the masks after the last draft tokens, which only the target needs."""
        began = time.perf_counter()
        for slot, lookahead in self.lookaheads.items():
            if self.target_rows[slot]:
                self.target_rows[slot].append(lookahead.row(self._masks))
        # before the lookaheads are rolled back
        self._masks.write()
        self._spend(began)

    def cached(self) -> TokenMask:
        return self._mask(self.rows)

    def _mask(self, rows: Tensor) -> TokenMask:
        return TokenMask(self._masks.words.to(self._device), rows.to(self._device))

    def _spend(self, began: float) -> None:
        share_s(began, self._grammar_states.values())


def share_s(began: float, grammar_states: Collection[GrammarState]) -> None:
    """Count the time since `began` with the rounds of these requests, in equal shares."""
    spent_s = (time.perf_counter() - began) / max(1, len(grammar_states))
    for grammar_state in grammar_states:
        grammar_state.spend(spent_s)
