"""Penalties, biases and a least number of tokens of toy requests: what a subject is given, and the exact law.

The rows of the exact law are changed token by token, apart from the code that they test, by the rule of vLLM's V1
sampler (kernels.edit_logits).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.contract import LogitEdits, Texts

PROMPT = (0,)
"""Tokens that the requests of a case with edits have in front of their output: state 0 is that behind it."""


@dataclass(frozen=True)
class ToyEdits:
    """What all requests of a case have of it; token ids are the pair's own numbers."""

    repetition: float = 1.0
    frequency: float = 0.0
    presence: float = 0.0
    min_tokens: int = 0
    biases: tuple[tuple[int, float], ...] = ()
    ends: tuple[int, ...] = ()
    """Tokens that may not come before `min_tokens`; they end nothing here."""

    @property
    def name(self) -> str:
        return "penalties, biases, a least length" if self.min_tokens else "penalties"

    def given(self, num_requests: int, device: torch.device) -> LogitEdits:
        """The same of every request of a batch."""
        ids = sorted({*(token for token, _ in self.biases), *self.ends}) or [-1]
        biases = dict(self.biases)

        def each(value: float, dtype: torch.dtype) -> Tensor:
            return torch.full((num_requests,), value, dtype=dtype, device=device)

        def of_tokens(values: list, dtype: torch.dtype) -> Tensor:
            return torch.tensor(values, dtype=dtype, device=device).expand(num_requests, -1).contiguous()

        return LogitEdits(
            repetition_penalty=each(self.repetition, torch.float32),
            frequency_penalty=each(self.frequency, torch.float32),
            presence_penalty=each(self.presence, torch.float32),
            min_tokens=each(self.min_tokens, torch.int64),
            token_ids=of_tokens(ids, torch.int32),
            biases=of_tokens([biases.get(token, 0.0) for token in ids], torch.float32),
            ends=of_tokens([token in self.ends for token in ids], torch.bool),
        )

    def row(self, logits: Tensor, output: list[int]) -> Tensor:
        """A row [V] after some output tokens, in its own dtype."""
        values = logits.float().tolist()
        for token, bias in self.biases:
            values[token] += bias
        for token in {*PROMPT, *output}:
            values[token] *= 1 / self.repetition if values[token] > 0 else self.repetition
        for token in set(output):
            values[token] -= self.frequency * output.count(token) + self.presence
        for token in self.ends if len(output) < self.min_tokens else ():
            values[token] = -torch.inf
        return torch.tensor(values).to(logits.dtype)


def texts_of(tokens: Tensor, num_emitted: Tensor) -> Texts:
    """What some requests have said so far.

    Args:
        tokens: [R, C] int64, their output tokens.
        num_emitted: [R] int64, how many of these there are.
    """
    prompts = tokens.new_tensor(PROMPT).expand(len(tokens), -1)
    token_ids = torch.cat([prompts, tokens], dim=1)
    return Texts(token_ids, num_emitted + len(PROMPT), torch.full_like(num_emitted, len(PROMPT)))
