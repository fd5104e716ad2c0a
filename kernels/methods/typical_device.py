"""Typical acceptance on the device."""

from __future__ import annotations

import triton
import triton.language as tl

from .hooks import ENTROPY, Hooks


@triton.jit
def is_typical(parameters, index, target_prob, draft_prob, uniform_number, entropy):
    """p(X) > min(epsilon, delta exp(-H)), or certain."""
    limit = tl.minimum(tl.load(parameters), tl.load(parameters + 1) * tl.exp(-entropy))
    return (target_prob > limit) | (target_prob == 1)


HOOKS = Hooks(test=is_typical, statistic=ENTROPY)
