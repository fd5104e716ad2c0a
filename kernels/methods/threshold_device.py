"""SGLang's acceptance thresholds on the device."""

from __future__ import annotations

import triton
import triton.language as tl

from .hooks import Hooks


@triton.jit
def is_above(parameters, index, target_prob, draft_prob, uniform_number, statistic):
    """p(X) >= single, or u acc < p(X)."""
    certain = target_prob >= tl.load(parameters)
    return certain | (uniform_number * tl.load(parameters + 1) < target_prob)


HOOKS = Hooks(test=is_above)
