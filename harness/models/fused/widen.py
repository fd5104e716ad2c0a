"""A weight of 8 bits written out in the type of the states. Twin: harness.models.fp8_linear.dequantized.

Torch multiplies by it where many tokens read it. A program takes a part of a row.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from harness.models.fp8_linear import FP8
from harness.models.fused.checks import check_tensor

BLOCK = 4096
NUM_WARPS = 4


@triton.jit
def _widen_kernel(codes, scales, wide, in_features, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < in_features
    code = tl.load(codes + row * in_features + columns, mask=inside, other=0).to(tl.int32)
    # as bits of float32, whose exponent has a bias of 127 in the place of 7; every GPU can do that
    bits = ((code & 0x80) << 24) | ((code & 0x7F) << 20)
    value = bits.to(tl.float32, bitcast=True) * 1.329227995784916e36
    value = tl.where((code & 0x7F) == 0x7F, float("nan"), value) * tl.load(scales + row)
    tl.store(wide + row * in_features + columns, value.to(wide.dtype.element_ty), mask=inside)


def widen(codes: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """[OUT, IN] s q, exact in the type as far as harness.models.fp8_linear says.

    Args:
        codes: [OUT, IN] float8_e4m3fn.
        scales: [OUT] float32.
        dtype: bfloat16, float16 or float32.
    """
    check_tensor("codes", codes, codes.shape, FP8)
    check_tensor("scales", scales, (len(codes),), torch.float32)
    wide = torch.empty(codes.shape, dtype=dtype, device=codes.device)
    grid = (len(codes), triton.cdiv(codes.shape[1], BLOCK))
    _widen_kernel[grid](codes.view(torch.uint8), scales, wide, codes.shape[1], BLOCK=BLOCK, num_warps=NUM_WARPS)
    return wide
