"""The exact law of a toy request's first tokens, in float64, written apart from the code that it judges.

softmax of logit / T; top-k keeps the k largest; top-p the smallest set of largest probabilities, renormalised after
top-k, whose mass reaches top_p; min-p what has at least min_p times the largest probability. T = 0 is the argmax.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from harness.certification.toy_models import ToyModels


class Profile(NamedTuple):
    """The sampling parameters of one request."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    @property
    def truncates(self) -> bool:
        return self.top_k > 0 or self.top_p < 1 or self.min_p > 0


def processed_row(logits: Tensor, profile: Profile) -> Tensor:
    """The distribution of one row.

    Args:
        logits: [V], any floating dtype, finite, or -inf where forbidden; no two of them equal at a cut.
        profile: its numbers are taken in float32, as a sampler receives them.

    Returns:
        [V] float64.
    """
    values = logits.double().cpu()
    temperature, top_p, min_p = (
        float(torch.tensor(value, dtype=torch.float32)) for value in (profile.temperature, profile.top_p, profile.min_p)
    )
    if temperature == 0:
        return torch.nn.functional.one_hot(values.argmax(), len(values)).double()
    probs, order = torch.softmax(values / temperature, dim=0).sort(descending=True)
    keeps = torch.ones_like(probs, dtype=torch.bool)
    if 0 < profile.top_k < len(probs):
        keeps[profile.top_k :] = False
    left = probs * keeps / (probs * keeps).sum()
    keeps &= (left.cumsum(0) - left < top_p) & (probs >= min_p * probs[0])
    kept = probs * keeps
    return torch.zeros_like(probs).scatter_(0, order, kept / kept.sum())


def exact_law(models: ToyModels, profile: Profile) -> Tensor:
    """Probability of every sequence of the models' first `num_tokens` tokens, from state 0.

    Returns:
        [V ** num_tokens] float64; the index is the sequence as digits in base V, first token first.
    """
    logits = models.target_logits
    if models.allowed is not None:
        logits = logits.masked_fill(~models.allowed, -torch.inf)
    rows = torch.stack([processed_row(row, profile) for row in logits])
    tokens = torch.arange(models.vocab_size)
    law, states = torch.ones(1, dtype=torch.float64), torch.zeros(1, dtype=torch.long)
    for _ in range(models.num_tokens):
        law = (law[:, None] * rows[states]).flatten()
        states = models.next_states(states[:, None], tokens).flatten()
    return law
