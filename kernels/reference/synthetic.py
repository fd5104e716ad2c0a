"""Synthetic acceptance, a benchmark device and not a sampler: accepts at given rates, whatever the tokens.

a_1 >= a_2 >= .. unconditional rates: accept position i with probability a_i / a_{i-1}, a_0 = 1.
"""

from __future__ import annotations

import torch

from .odds import Odds
from .proposal import Proposal


def synthetic_odds(proposal: Proposal, rates: tuple[float, ...]) -> Odds:
    """[R, K] odds a_i : a_{i-1}; raises ValueError when a position has no rate."""
    width = proposal.token_ids.shape[1]
    if len(rates) < width:
        raise ValueError(f"synthetic_rates must cover all {width} positions of the draft; found {len(rates)} rates")
    unconditional = torch.tensor((1.0, *rates[:width]), dtype=torch.float64, device=proposal.rows.device)
    numerator = unconditional[1:].expand(len(proposal.rows), width)
    # A rate of 0 is followed by rates of 0 only: 0 : 1 instead of 0 : 0.
    denominator = torch.where(unconditional[:-1] > 0, unconditional[:-1], 1.0)
    return Odds(numerator, denominator.expand_as(numerator))
