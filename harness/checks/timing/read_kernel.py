"""A plain read of memory: every program sums one block of a buffer and writes the sum. Needs a GPU."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _read_kernel(
    # [num_programs * BLOCK]
    values_ptr,
    # [num_programs]
    sums_ptr,
    BLOCK: tl.constexpr,
):
    program = tl.program_id(0).to(tl.int64)
    values = tl.load(values_ptr + program * BLOCK + tl.arange(0, BLOCK))
    tl.store(sums_ptr + program, tl.sum(values, axis=0))


def read(values: Tensor, sums: Tensor, block: int, num_warps: int) -> None:
    """Read a buffer once.

    Args:
        values: [N * block] float32.
        sums: [N] float32, takes the sums.
        block: elements of a program.
        num_warps: of a program.
    """
    num_programs = values.numel() // block
    if values.dtype != torch.float32 or values.numel() != num_programs * block or sums.numel() < num_programs:
        raise ValueError(f"expected whole blocks of {block} float32 and a sum for each, found {values.numel()}")
    _read_kernel[(num_programs,)](values_ptr=values, sums_ptr=sums, BLOCK=block, num_warps=num_warps)
