"""Block verification on the device.

h_i <= P_i, so a position whose uniform number is not below P_i fails without a look at its rows; of the others the
second pass sums Z_i, the last first, so that an earlier one can be left out once a later one has passed.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..chain.accept_count import entry
from .hooks import Hooks


@triton.jit
def position_passes(parameters, uniform_number, mass, ratio):
    """The test of a position: eta < Z / (Z + 1 - P), with Z the mass of its residual and P its ratio."""
    rest = mass + (1.0 - ratio)
    return uniform_number * tl.where(rest == 0, 1.0, rest) < tl.where(rest == 0, ratio, mass)


@triton.jit
def block_length(parameters, columns, target_logprobs, draft_logprobs, uniform_numbers, num_usable, one_hot):
    """The part of block verification that single tokens decide.

    Args:
        target_logprobs, draft_logprobs, uniform_numbers: float64, of each draft token; vectors like `columns`.

    Returns:
        (number accepted, bit mask of the positions whose residual mass is needed, vector of log P_i): one of them is
        final. The mask is 0 when the number is final; otherwise it has bit 0, for the residual after nothing was
        accepted.
    """
    log_ratios = tl.zeros_like(target_logprobs)
    log_ratio = tl.full((), 0.0, tl.float64)
    num_accepted = tl.full((), 0, tl.int32)
    needed = tl.full((), 0, tl.int32)
    for index in range(1, num_usable + 1):
        step = entry(target_logprobs, columns, index - 1) - entry(draft_logprobs, columns, index - 1)
        log_ratio = tl.minimum(log_ratio + step, 0.0)
        log_ratios = tl.where(columns == index, log_ratio, log_ratios)
        ratio = tl.exp(log_ratio)
        uniform_number = entry(uniform_numbers, columns, index - 1)
        if index == num_usable:
            if uniform_number < ratio:
                num_accepted = index
                needed = needed * 0
        elif one_hot:
            mass = ratio * (1.0 - tl.exp(entry(target_logprobs, columns, index)))
            if position_passes(parameters, uniform_number, mass, ratio):
                num_accepted = index
        elif uniform_number < ratio:
            needed = needed | ((needed * 0 + 1) << index)
    if (num_accepted < num_usable) & (one_hot == 0):
        needed = needed | 1
    return num_accepted, needed, log_ratios


HOOKS = Hooks(count=block_length, mass_passes=position_passes)
