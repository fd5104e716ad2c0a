"""Whether the second pass decides (kernels.deciding_pass), and how its work is divided."""

from __future__ import annotations

import torch
import triton

from .contract import VerificationMethod
from .round import Round
from .workspace import SHORT_CHUNK

Method = VerificationMethod
MANY_LATE, FEW_LATE = ((4, 2, 4), (8, 4, 4), (32, 8, 8)), ((8, 4, 4), (16, 8, 4))
LATE_PROGRAMS = {Method.probabilistic: MANY_LATE, Method.lenient: MANY_LATE, Method.block: FEW_LATE}
"""Methods under which the second pass decides: up to so many requests, the chunks that a program weighs, and its warps.
When they were chosen block at 16 requests took 30.3 us with 8 chunks and 4 warps, 8 and 8 31.6, 4 and 4 32.8, where the
first pass decides 34.0 (H100); probabilistic at 4 15.8 with 2 and 4, 4 and 4 16.1 (H200)."""
MAX_CHUNK_SUMS = 512
"""Sums of chunks that a program of the deciding pass holds, at most."""


def decides_late(round_: Round) -> bool:
    """Whether the first pass only sums, and the second decides."""
    shape = round_.shape
    if round_.draft.logits is None or round_.truncates or round_.is_masked or shape.chunk == SHORT_CHUNK:
        return False
    most = max((most for most, *_ in LATE_PROGRAMS.get(round_.method, ())), default=0)
    num_sums = triton.next_power_of_2(shape.width + 1) * shape.chunks_padded
    return shape.num_requests <= most and num_sums <= MAX_CHUNK_SUMS


def late_program(round_: Round) -> tuple[int, int]:
    """Chunks that a program of the deciding pass weighs, and its warps; only where `decides_late`."""
    shape = round_.shape
    parts, num_warps = next(each[1:] for each in LATE_PROGRAMS[round_.method] if shape.num_requests <= each[0])
    if round_.row_traits.dtype == torch.float32 or not round_.row_traits.is_aligned:
        # no registers are left for several chunks of a warp
        parts = min(parts, num_warps)
    return min(parts, shape.chunks_padded), min(num_warps, shape.chunks_padded)
