"""Probabilistic verification on the device."""

import triton
import triton.language as tl  # noqa: F401 (Triton's interpreter looks for it)

from .hooks import Hooks


# pr35461 has it too
@triton.jit
def compared_with_draft(parameters, index, draft_prob, uniform_number):
    """u q(X)."""
    return uniform_number * draft_prob


HOOKS = Hooks(limit=compared_with_draft)
