"""Suffix decoding: what followed the longest suffix of the sequence that has occurred before, however long it is.

Source: suffix decoding (arXiv 2411.04975) and SAM decoding (arXiv 2411.10666). The longer the suffix, the more tokens
are proposed: the depth of a round follows from the tokens so far, never from the drafts, so that verification stays
exact. The proposal is one-hot. Texts are kept in a suffix automaton on the host.

Shapes: B rows, C capacity of a row, K draft tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from harness.drafters.protocol import Batch, StatelessDrafter
from harness.drafters.suffix_automaton import SuffixAutomaton
from harness.settings.models import SuffixScope
from kernels.contract import Draft

MAX_TOKENS = 1_000_000
"""Of all texts together; beyond it they are forgotten, so that memory stays below a gigabyte."""


@dataclass
class Row:
    """The text of a request, as far as it has been read."""

    automaton: SuffixAutomaton
    text: int

    def continues_with(self, tokens: NDArray[np.int64]) -> bool:
        """Whether the tokens are this text and possibly more."""
        read = self.automaton.texts[self.text]
        return len(read) <= len(tokens) and bool(np.array_equal(tokens[: len(read)], read))


class SuffixDrafter(StatelessDrafter):
    """Looks the proposal up in the request's own sequence, or in those of all requests that the drafter has seen.

    Args:
        shortest: a suffix below this length is not looked up.
        factor: tokens proposed for each token of the suffix; K is the limit.
        scope: whose text is looked up. With `all` the drafts, and with them the tokens that are sampled, depend on the
            requests that ran before.
    """

    def __init__(self, shortest: int, factor: float, scope: SuffixScope) -> None:
        self.shortest = shortest
        self.factor = factor
        self.scope = scope
        self._shared = SuffixAutomaton()
        self._rows: dict[int, Row] = {}

    def propose(self, batch: Batch) -> Draft:
        count = batch.num_speculative_tokens
        token_ids = np.zeros((batch.num_rows, count), np.int64)
        num_draft_tokens = np.zeros(batch.num_rows, np.int64)
        slots = range(batch.num_rows) if isinstance(batch.rows, slice) else batch.rows.tolist()
        tokens, lengths = batch.token_ids.cpu().numpy(), batch.lengths.tolist()
        for index, (slot, length) in enumerate(zip(slots, lengths, strict=True)):
            # a row that idles has one token, and a single token has no suffix that is worth looking up
            if length > 1:
                found = self._proposal(slot, tokens[index, :length], count)
                token_ids[index, : len(found)] = found
                num_draft_tokens[index] = len(found)
        device = batch.token_ids.device
        return Draft(torch.from_numpy(token_ids).to(device), torch.from_numpy(num_draft_tokens).to(device))

    def clear(self, slot: int) -> None:
        self._rows.pop(slot, None)

    def move(self, source: int, destination: int) -> None:
        if source in self._rows:
            self._rows[destination] = self._rows.pop(source)
        else:
            self._rows.pop(destination, None)

    def _proposal(self, slot: int, tokens: NDArray[np.int64], count: int) -> list[int]:
        row = self._rows.get(slot)
        if row is None or not row.continues_with(tokens):
            row = self._rows[slot] = self._new_row()
        automaton, text = row.automaton, row.text
        for token in tokens[len(automaton.texts[text]) :].tolist():
            automaton.append(text, token)
        match = automaton.longest_match(text)
        if match.length < self.shortest:
            return []
        return automaton.continuation(text, match, min(count, int(self.factor * match.length)))

    def _new_row(self) -> Row:
        if self.scope is SuffixScope.request:
            automaton = SuffixAutomaton()
            return Row(automaton, automaton.begin())
        if self._shared.num_tokens > MAX_TOKENS:
            self._shared = SuffixAutomaton()
        return Row(self._shared, self._shared.begin())
