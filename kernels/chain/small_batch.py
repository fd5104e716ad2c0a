"""Whether the second pass decides (kernels.chain.small_batch_pass), and how its work is divided."""

from __future__ import annotations

import torch
import triton

from ..launch.workspace import SHORT_CHUNK
from ..methods import MethodTraits
from ..methods.hooks import Hooks
from .launch_args import Round

MANY_LATE, FEW_LATE = ((4, 2, 4), (8, 4, 4), (32, 8, 8)), ((8, 4, 4), (16, 8, 4))
"""Where the second pass decides, of rules with a limit and of rules that count: up to so many requests, the chunks that
a program weighs, and its warps.
When they were chosen block at 16 requests took 30.3 us with 8 chunks and 4 warps, 8 and 8 31.6, 4 and 4 32.8, where the
first pass decides 34.0 (H100); probabilistic at 4 15.8 with 2 and 4, 4 and 4 16.1 (H200)."""
MAX_CHUNK_SUMS = 512
"""Sums of chunks that a program of the deciding pass holds, at most."""


def late_programs(hooks: Hooks, traits: MethodTraits) -> tuple[tuple[int, int, int], ...]:
    """Those of a rule that tests its draft tokens by sums alone and emits from the residual; none of others."""
    if not hooks.needs_sums_alone or traits.emits_from_target:
        return ()
    return MANY_LATE if hooks.count is None else FEW_LATE


def decides_late(round_: Round) -> bool:
    """Whether the first pass only sums, and the second decides."""
    shape = round_.shape
    if round_.draft.logits is None or round_.truncates or round_.is_masked or shape.chunk == SHORT_CHUNK:
        return False
    most = max((most for most, *_ in late_programs(round_.hooks, round_.traits)), default=0)
    num_sums = triton.next_power_of_2(shape.width + 1) * shape.chunks_padded
    return shape.num_requests <= most and num_sums <= MAX_CHUNK_SUMS


def late_program(round_: Round) -> tuple[int, int]:
    """Chunks that a program of the deciding pass weighs, and its warps; only where `decides_late`."""
    shape = round_.shape
    parts, num_warps = next(
        each[1:] for each in late_programs(round_.hooks, round_.traits) if shape.num_requests <= each[0]
    )
    if round_.row_traits.dtype == torch.float32 or not round_.row_traits.is_aligned:
        # no registers are left for several chunks of a warp
        parts = min(parts, num_warps)
    return min(parts, shape.chunks_padded), min(num_warps, shape.chunks_padded)
