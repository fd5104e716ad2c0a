"""Rows on which the law of a draw is measured: flat, peaked and in between.

Shapes: V the vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from harness.agreement.rows import EXPONENTS

ROWS: dict[str, Callable[[int, torch.Generator], Tensor]] = {}
"""Name -> (V, generator) -> [V] float32 logits on the generator's device."""


def row(name: str) -> Callable[[Callable[[int, torch.Generator], Tensor]], Callable[[int, torch.Generator], Tensor]]:
    def keep(make: Callable[[int, torch.Generator], Tensor]) -> Callable[[int, torch.Generator], Tensor]:
        ROWS[name] = make
        return make

    return keep


@row("all equal")
def all_equal(vocab_size: int, generator: torch.Generator) -> Tensor:
    return torch.zeros(vocab_size, device=generator.device)


@row("nearly flat")
def nearly_flat(vocab_size: int, generator: torch.Generator) -> Tensor:
    """Normal with standard deviation 0.1."""
    return 0.1 * torch.randn(vocab_size, generator=generator, device=generator.device)


@row("normal")
def normal(vocab_size: int, generator: torch.Generator) -> Tensor:
    """Standard deviation 3."""
    return 3 * torch.randn(vocab_size, generator=generator, device=generator.device)


@row("Zipf")
def zipf(vocab_size: int, generator: torch.Generator) -> Tensor:
    """As in harness.agreement.rows, in the middle of its exponents."""
    logits = torch.empty(vocab_size, device=generator.device).exponential_(generator=generator)
    return logits * (sum(EXPONENTS) / 2)


@row("one token with .999")
def peaked(vocab_size: int, generator: torch.Generator) -> Tensor:
    """At temperature 1, above a nearly flat rest."""
    logits = nearly_flat(vocab_size, generator)
    logits[vocab_size // 3] = float(logits.logsumexp(dim=0)) + torch.tensor(0.999 / 0.001).log().item()
    return logits
