"""The control pr35461 on the device."""

from __future__ import annotations

import triton
import triton.language as tl

from ..random.device_streams import COUPLED, to_unit, words
from .hooks import SHARED, Hooks
from .probabilistic_device import compared_with_draft

SHARED_DRAW: tl.constexpr = tl.constexpr(-(2**31))
"""kernels.methods.pr35461.ACCEPT_DRAW as a 32-bit integer."""


@triton.jit
def shared_uniform(seed, position, round_index):
    """A number of the stream that the drafts' noise comes from, the same in every round."""
    first, second, _, _ = words(seed, COUPLED, position, position * 0, SHARED_DRAW)
    return to_unit(first, second)


HOOKS = Hooks(limit=compared_with_draft, uniform=shared_uniform, noise=SHARED)
