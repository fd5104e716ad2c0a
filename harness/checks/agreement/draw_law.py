"""The law that a core's draws follow, measured in two ways.

From outside, for any core: the uniform number behind a draw is known, so every token drawn says on which side of it the
boundaries of the core's cumulative distribution lie. `boundary_shift` draws many times from one row and gives how far
a boundary must have moved at least: the largest distance of a uniform number from the float64 interval of its token.

From inside, for the kernels: harness.checks.agreement.kernel_law gives the probability of every token, and
`total_variation` compares it with the float64 softmax.

Shapes: N draws, V the vocabulary.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from harness.checks.agreement.margins import nearby
from kernels.contract import Sampling, Streams
from kernels.core import Core
from kernels.random.streams import Purpose, uniform
from kernels.reference.truncation import process

ELEMENTS_AT_A_TIME = 2**28
"""Logits that one call draws from; the reference makes a float64 copy of them."""
FLOAT64_ROUNDING = 1e-14
"""Of a cumulative sum over a vocabulary; nearer than that float64 does not tell."""


class Shift(NamedTuple):
    """What many draws from one row say about the boundaries of the law that they follow."""

    num_draws: int
    num_shifted: int
    """Draws whose token is not the one that float64 chooses."""
    largest: float
    """Largest distance of a uniform number from the interval of its token, a probability."""
    num_impossible: int
    """Draws of a token whose probability is 0."""


def boundary_shift(core: Core, logits: Tensor, sampling: Sampling, num_draws: int, seed: int) -> Shift:
    """Draw from one row with many seeds and compare with the float64 cumulative distribution.

    Where rounding may decide whether top-p or min-p keeps a token, the nearer of the laws counts (see margins).

    Args:
        core: draws.
        logits: [V], any floating dtype that the core takes.
        sampling: fields [1].
        num_draws: N.
        seed: the N seeds follow it.
    """
    seeds = torch.arange(seed, seed + num_draws, device=logits.device)
    num_rows = max(1, ELEMENTS_AT_A_TIME // len(logits))
    token_ids = torch.cat([_drawn(core, logits, sampling, part) for part in seeds.split(num_rows)])
    uniforms = uniform(seeds, Purpose.draft, 0, 0)
    shifts = [_shift(process(logits[None], each).exp()[0], uniforms, token_ids) for each in nearby(sampling)]
    return min(shifts, key=lambda shift: (shift.num_impossible, shift.largest))


def _shift(probs: Tensor, uniforms: Tensor, token_ids: Tensor) -> Shift:
    """Compare draws with one law: [V] float64 probabilities, [N] float64, [N] int64."""
    cumulative = probs.cumsum(dim=0)
    upper = cumulative[token_ids] / cumulative[-1]
    lower = upper - probs[token_ids] / cumulative[-1]
    distance = (torch.maximum(lower - uniforms, uniforms - upper) - FLOAT64_ROUNDING).clamp(min=0.0)
    num_impossible = int((probs[token_ids] == 0).sum())
    return Shift(len(token_ids), int((distance > 0).sum()), float(distance.max()), num_impossible)


def _drawn(core: Core, logits: Tensor, sampling: Sampling, seeds: Tensor) -> Tensor:
    """[n] int64, one token of the row for each of `seeds` ([n] int64), at position and round 0."""
    zeros = torch.zeros_like(seeds)
    everywhere = sampling.each(lambda field: field.expand(len(seeds)).contiguous())
    rows = logits.expand(len(seeds), -1)
    return core.draw(rows, everywhere, Streams(seeds, zeros, zeros), Purpose.draft).token_ids


def total_variation(law: Tensor, logits: Tensor, sampling: Sampling) -> float:
    """Half the sum of absolute differences to the float64 processed distribution.

    Args:
        law: [V] float64.
        logits: [V].
        sampling: fields [1].
    """
    return float((law - process(logits[None], sampling).exp()[0]).abs().sum() / 2)
