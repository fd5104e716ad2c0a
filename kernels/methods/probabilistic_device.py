"""Probabilistic verification on the device."""

from __future__ import annotations

import triton

from .hooks import Hooks


@triton.jit
def compared_with_draft(parameters, index, draft_prob, uniform_number):
    """u q(X)."""
    return uniform_number * draft_prob


HOOKS = Hooks(limit=compared_with_draft)
