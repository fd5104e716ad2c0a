"""Suffix decoding: what followed the longest suffix of the sequence that has occurred before, however long it is.

Source: suffix decoding (arXiv 2411.04975) and SAM decoding (arXiv 2411.10666), which look in other requests' texts too;
here it is the request's own, so that no token depends on what ran before. The longer the suffix, the more tokens are
proposed: the depth of a round follows from the tokens so far, never from the drafts, so that verification stays exact.
The proposal is one-hot. Texts are kept in suffix automata on the host.

Shapes: B rows, C capacity of a row, K draft tokens.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from harness.drafters.protocol import Batch, StatelessDrafter
from harness.drafters.suffix_automaton import SuffixAutomaton
from kernels.contract import Draft


class SuffixDrafter(StatelessDrafter):
    """Looks the proposal up in the request's own sequence, prompt included.

    Args:
        shortest: a suffix below this length is not looked up.
        factor: tokens proposed for each token of the suffix; K is the limit.
    """

    def __init__(self, shortest: int, factor: float) -> None:
        self.shortest = shortest
        self.factor = factor
        self._texts: dict[int, SuffixAutomaton] = {}
        """By slot, what has been read of its sequence."""

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
        self._texts.pop(slot, None)

    def move(self, source: int, destination: int) -> None:
        if source in self._texts:
            self._texts[destination] = self._texts.pop(source)
        else:
            self._texts.pop(destination, None)

    def _proposal(self, slot: int, tokens: NDArray[np.int64], count: int) -> list[int]:
        text = self._texts.get(slot)
        if text is None or not np.array_equal(tokens[: len(text.tokens)], text.tokens):
            # of another request
            text = self._texts[slot] = SuffixAutomaton()
        for token in tokens[len(text.tokens) :].tolist():
            text.append(token)
        match = text.longest_match()
        if match.length < self.shortest:
            return []
        return text.continuation(match, min(count, int(self.factor * match.length)))
