"""Prompt lookup: the tokens that followed the last occurrence of the sequence's own suffix.

Source: prompt lookup decoding (A. Saxena, 2023), as in transformers' and vLLM's n-gram speculators. The proposal is
one-hot. A row whose suffix has not occurred before gets no draft tokens in that round.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from harness.drafters.protocol import ProposalRequest, TargetStep
from kernels.contract import Draft


def lookup(sequence: Sequence[int], longest: int, shortest: int, num_tokens: int) -> list[int]:
    """The up to `num_tokens` tokens after the most recent earlier occurrence of the longest matching suffix."""
    size = len(sequence)
    for width in range(min(longest, size - 1), shortest - 1, -1):
        suffix = list(sequence[size - width :])
        for start in range(size - width - 1, -1, -1):
            if sequence[start + width - 1] == suffix[-1] and list(sequence[start : start + width]) == suffix:
                return list(sequence[start + width : start + width + num_tokens])
    return []


class NgramDrafter:
    """Looks the proposal up in the request's own sequence, prompt included."""

    aux_layers: tuple[int, ...] = ()
    num_parameters = 0
    logit_cache_bytes = 0

    def __init__(self, longest: int, shortest: int) -> None:
        self.longest = longest
        self.shortest = shortest

    def extend(self, step: TargetStep) -> None:
        """The sequences arrive with every proposal request."""

    def clear(self, slot: int) -> None:
        """Nothing is kept."""

    def propose(self, request: ProposalRequest) -> Draft:
        num_tokens = request.num_speculative_tokens
        found = [lookup(sequence, self.longest, self.shortest, num_tokens) for sequence in request.sequences]
        padded = [tokens + [0] * (num_tokens - len(tokens)) for tokens in found]
        device = request.positions.device
        return Draft(
            torch.tensor(padded, dtype=torch.int64, device=device).view(request.num_rows, num_tokens),
            torch.tensor([len(tokens) for tokens in found], dtype=torch.int64, device=device),
        )
