"""Suffix decoding: what followed the longest suffix of the sequence that has occurred before, however long it is.

Source: suffix decoding (arXiv 2411.04975) and SAM decoding (arXiv 2411.10666). It is looked up in the request's own
text and, where that is asked for, in those of the other requests of the same block, ended or under way. The longer the
suffix, the more tokens are proposed: the depth of a round follows from the tokens so far, never from the drafts, so
that verification stays exact. The proposal is one-hot. Texts are kept in suffix automata on the host. A round reads the
tokens that are new since the last one, however long the text is: `begin` says where another one begins.

Shapes: B rows, C capacity of a row, K draft tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np
import torch

from harness.drafters.protocol import Batch, StatelessDrafter
from harness.drafters.suffix_automaton import SuffixAutomaton
from kernels.contract import Draft


class _Text(NamedTuple):
    """What has been read of a slot's sequence."""

    automaton: SuffixAutomaton
    number: int

    @property
    def tokens(self) -> list[int]:
        return self.automaton.texts[self.number]


class SuffixDrafter(StatelessDrafter):
    """Looks the proposal up in the request's own sequence, prompt included, and in those of others.

    Args:
        shortest: a suffix below this length is not looked up.
        factor: tokens proposed for each token of the suffix; K is the limit.
        history: tokens of all requests together that are searched, 0 for each request's own alone. Where there are more
            when a request begins, those of ended requests are dropped.
    """

    def __init__(self, shortest: int, factor: float, history: int = 0) -> None:
        self.shortest = shortest
        self.factor = factor
        self.history = history
        self._texts: dict[int, _Text] = {}
        """By slot."""
        self._shared = SuffixAutomaton()

    def forget(self) -> None:
        """Drop the texts of all requests."""
        self._texts.clear()
        self._shared = SuffixAutomaton()

    def propose(self, batch: Batch) -> Draft:
        count = batch.num_speculative_tokens
        token_ids = np.zeros((batch.num_rows, count), np.int64)
        num_draft_tokens = np.zeros(batch.num_rows, np.int64)
        slots = range(batch.num_rows) if isinstance(batch.rows, slice) else batch.rows.tolist()
        for index, new in self._new_tokens(batch, slots).items():
            found = self._proposal(slots[index], new, count)
            token_ids[index, : len(found)] = found
            num_draft_tokens[index] = len(found)
        device = batch.token_ids.device
        return Draft(torch.from_numpy(token_ids).to(device), torch.from_numpy(num_draft_tokens).to(device))

    def begin(self, slot: int) -> None:
        self._texts.pop(slot, None)

    def clear(self, slot: int) -> None:
        self.begin(slot)

    def move(self, source: int, destination: int) -> None:
        if source in self._texts:
            self._texts[destination] = self._texts.pop(source)
        else:
            self._texts.pop(destination, None)

    def _new_tokens(self, batch: Batch, slots: Sequence[int]) -> dict[int, list[int]]:
        """By row, the tokens that its text does not have yet; no others are copied to the host."""
        # a row that idles has one token, and a single token has no suffix that is worth looking up
        lengths = {index: length for index, length in enumerate(batch.lengths.tolist()) if length > 1}
        if not lengths:
            return {}
        counts = {index: length - self._num_read(slots[index], length) for index, length in lengths.items()}
        stops = [index * batch.token_ids.shape[1] + length for index, length in lengths.items()]
        places = [np.arange(stop - count, stop) for stop, count in zip(stops, counts.values(), strict=True)]
        # of all rows in one copy
        wanted = torch.from_numpy(np.concatenate(places)).to(batch.token_ids.device)
        new = iter(batch.token_ids.take(wanted).tolist())
        return {index: list(islice(new, count)) for index, count in counts.items()}

    def _num_read(self, slot: int, length: int) -> int:
        """Tokens that were read of a slot's text; a text that was longer is forgotten, as it is another one."""
        if slot in self._texts and len(self._texts[slot].tokens) > length:
            self.begin(slot)
        return len(self._texts[slot].tokens) if slot in self._texts else 0

    def _proposal(self, slot: int, new: Sequence[int], count: int) -> list[int]:
        if slot not in self._texts:
            self._texts[slot] = self._new_text()
        text = self._texts[slot]
        for token in new:
            text.automaton.append(text.number, token)
        match = text.automaton.longest_match(text.number)
        if match.length < self.shortest:
            return []
        return text.automaton.continuation(text.number, match, min(count, int(self.factor * match.length)))

    def _new_text(self) -> _Text:
        if not self.history:
            automaton = SuffixAutomaton()
        else:
            if self._shared.num_tokens > self.history:
                self._drop_ended()
            automaton = self._shared
        return _Text(automaton, automaton.begin())

    def _drop_ended(self) -> None:
        """Begin anew with the texts that slots hold."""
        self._shared = SuffixAutomaton()
        for slot, text in self._texts.items():
            moved = self._texts[slot] = _Text(self._shared, self._shared.begin())
            for token in text.tokens:
                self._shared.append(moved.number, token)
