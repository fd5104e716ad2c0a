"""Rows on which the law of a draw is measured: flat, peaked and in between.

Shapes: V the vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from harness.agreement.rows import EXPONENTS


def _normal(vocab_size: int, generator: torch.Generator) -> Tensor:
    return torch.randn(vocab_size, generator=generator, device=generator.device)


def _zipf(vocab_size: int, generator: torch.Generator) -> Tensor:
    """As in harness.agreement.rows, in the middle of its exponents."""
    logits = torch.empty(vocab_size, device=generator.device).exponential_(generator=generator)
    return logits * (sum(EXPONENTS) / 2)


def _peaked(vocab_size: int, generator: torch.Generator) -> Tensor:
    """At temperature 1, above a nearly flat rest."""
    logits = 0.1 * _normal(vocab_size, generator)
    logits[vocab_size // 3] = float(logits.logsumexp(dim=0)) + torch.tensor(0.999 / 0.001).log().item()
    return logits


ROWS: dict[str, Callable[[int, torch.Generator], Tensor]] = {
    "all equal": lambda vocab_size, generator: torch.zeros(vocab_size, device=generator.device),
    "nearly flat": lambda vocab_size, generator: 0.1 * _normal(vocab_size, generator),
    "normal": lambda vocab_size, generator: 3 * _normal(vocab_size, generator),
    "Zipf": _zipf,
    "one token with .999": _peaked,
}
"""Name -> (V, generator) -> [V] float32 logits on the generator's device."""
