"""Synthetic acceptance of chains on the device."""

from __future__ import annotations

import triton
import triton.language as tl

from .hooks import Hooks


@triton.jit
def at_rate(parameters, index, target_prob, draft_prob, uniform_number, statistic):
    """u a_{i-1} < a_i."""
    before = tl.load(parameters + index)
    return uniform_number * tl.where(before > 0, before, 1.0) < tl.load(parameters + 1 + index)


HOOKS = Hooks(test=at_rate)
