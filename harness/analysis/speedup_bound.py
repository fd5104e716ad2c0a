"""The largest speedup that drafting can buy: that of rounds which cost no more than plain forwards of as many requests.

A plain forward of B requests takes a + b B seconds: the weights are read once, and each request adds its work. Rounds
draft and verify besides. So with F forwards of requests and S of batches, a cell of N tokens takes a S + b F seconds at
least, and its baseline takes a S_0 + b F_0 for N_0. Whatever a and b are, the ratio of the two times lies between
S_0 / S and F_0 / F, or nearer to 1, since both read the prompts, which drafting makes no faster. The speedup is at most

    N / N_0  max(1, F_0 / F, S_0 / S)

With one request at a time, and wherever all slots stay full, F_0 / F and S_0 / S are the same, and the bound is the
cell's tokens per target forward. It is above that where the batches of the baseline ran emptier, as when its longest
answer is one that drafts shorten most. What a speedup is above the bound was not bought by drafts: the machine was
busier while the baseline ran.
"""

from __future__ import annotations

import math

from harness.analysis.estimates import Estimates, paired

ROUNDING = 1e-9
"""Relative size of differences that come from the order of additions."""
NOISE = 0.05
"""Relative size of differences between turns on a machine that nothing disturbs. A drafter that costs little and hardly
accepts anything is a tie with its baseline, which noise carries above the bound in half of all runs."""


def speedup_bound(baseline: Estimates, cell: Estimates) -> float:
    """The bound of the paired speedup of a cell, on the prompts that both measured in one session; nan without any."""
    baseline, cell = paired(baseline, cell, in_one_session=True)
    tokens = _ratio(cell, baseline, "num_output_tokens")
    most = [_ratio(baseline, cell, name) for name in ("num_forwards", "num_steps")]
    return tokens * max(1.0, *most) if all(map(math.isfinite, (tokens, *most))) else math.nan


def _ratio(first: Estimates, second: Estimates, name: str) -> float:
    divisor = second.total(name)
    return first.total(name) / divisor if divisor else math.nan
