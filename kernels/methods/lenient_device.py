"""Lenient verification on the device."""

from __future__ import annotations

import triton
import triton.language as tl

from .hooks import Hooks


@triton.jit
def discounted(parameters, index, draft_prob, uniform_number):
    """u l q(X)."""
    return uniform_number * (draft_prob * tl.load(parameters))


HOOKS = Hooks(limit=discounted)
