"""How many registers a thread of each pass may use (maxnreg): it decides how many programs a multiprocessor holds.

The compiler's own choice turns on parts of a kernel that a program runs once, if at all: left alone it takes 32 for a
loop that then waits for one load after another, or 64 where 48 do. A limit also gives leave to use that many. For sm_90
they were chosen by measurement (results/kernel_bench_h200/NOTES.md), but for pr35461, coupled, truncated rows, masks
and rows in words; the others so that a loop issues its loads together. With none of them anything spills, which the
compile check watches. Of the 65,536 registers of a multiprocessor, programs of 4 warps find room for 10 at 48, 6 at 80,
4 at 128, 3 at 168; programs of 8 warps for 4 at 64.
"""

from __future__ import annotations

import torch

from .contract import VerificationMethod

Method = VerificationMethod


def first_pass_registers(
    method: Method, dtype: torch.dtype, is_aligned: bool, capability: int, is_masked: bool, is_short: bool
) -> int | None:
    """Limit for kernels.first_pass with up to 4 warps; None leaves the choice to the compiler.

    Args:
        method: the rule.
        dtype: of the target's logits.
        is_aligned: rows are read 16 bytes at a time; else they are put together from words, or short.
        capability: of the GPU times ten.
        is_masked: some row may have a mask.
        is_short: rows are one short chunk, and the program that reads a row also prepares the test of its draft token.
    """
    if method is Method.coupled and is_aligned:
        # Left alone the compiler may take 128 for a smaller draft vocabulary, or 96 with masks, and spill.
        return 168
    if is_masked and is_aligned:
        return 128 if method is Method.block else 96
    if method is Method.block and is_aligned:
        # With 96 or 112 the code for other generations spills 16 bytes, with 80 that for short rows 4.
        return 80 if capability == 90 and not is_short else 128
    if method is Method.block and not is_short and not is_masked:
        # Left alone the compiler takes 72 for float32, and spills.
        return 96 if capability == 90 else 128
    spills = dtype == torch.float32 and capability >= 100
    return None if not is_aligned or spills else 48


def second_pass_registers(
    method: Method, dtype: torch.dtype, truncates: bool, num_warps: int, is_masked: bool, joins: bool
) -> int:
    """Limit for kernels.second_pass with up to 4 warps, or 8.

    Args:
        method: the rule.
        dtype: of the target's logits.
        truncates: a request may cut.
        num_warps: of a program.
        is_masked: some row may have a mask.
        joins: rows are put together from words.
    """
    if is_masked and method is not Method.pr35461:
        return 128 if method is not Method.block else 255 if num_warps <= 4 else 168
    if method is Method.pr35461:
        return 128 if num_warps <= 4 else 192
    if method is Method.block and not truncates:
        return 168 if joins and dtype == torch.float32 else 128
    if joins:
        return 128 if dtype == torch.float32 else 80
    return 80 if num_warps <= 4 else 64


def truncated_pass_registers(is_short: bool, num_warps: int, capability: int) -> int:
    """Limit for kernels.truncation.

    Args:
        is_short: rows are one short chunk, read by up to 4 warps; longer ones take up to 16.
        num_warps: of a program.
        capability: of the GPU times ten.
    """
    if is_short:
        # At 104 a multiprocessor has room for 19 programs of one warp, and for 8 at 255. The code of more warps spills
        # at 104, and so does that for other generations, which at 128 still spills a little.
        return 104 if num_warps == 1 and capability == 90 else 168
    # Without a limit the compiler may keep to half of that, and spill.
    return 128 if num_warps == 16 else 255
