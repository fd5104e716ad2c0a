"""The gate of a feed-forward layer, silu(gate) * up. Twin of harness.models.fused.reference.silu_mul.

Source: Shazeer, GLU Variants Improve Transformer (2020).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from harness.models.fused.checks import check_dtype, check_tensor
from harness.models.fused.overlap import overlaps

BLOCK = 1024
"""Components that a program computes: with 4 warps, 8 a thread, one 16-byte load of each 2-byte operand.

A row of 14336 takes 14 programs, so that 16 rows of 4 tokens make 896, nearly 7 for each of 132 multiprocessors: all
their loads, 3.7 MB in all, are under way at once.
"""
NUM_WARPS = 4


@triton.jit
def _silu_mul_kernel(
    gate_up,  # [N, 2 I]
    activated,  # [N, I]
    size,  # I
    BLOCK: tl.constexpr,
    OVERLAPS: tl.constexpr,
):
    if OVERLAPS:
        gdc_launch_dependents()
        gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < size
    gate = tl.load(gate_up + row * 2 * size + columns, mask=inside, other=0.0)
    up = tl.load(gate_up + (row * 2 + 1) * size + columns, mask=inside, other=0.0)
    wide = gate.to(tl.float32)
    silu = (wide / (1.0 + tl.exp(-wide))).to(gate.dtype)
    tl.store(activated + row * size + columns, (silu.to(tl.float32) * up.to(tl.float32)).to(gate.dtype), mask=inside)


def silu_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) * up.

    Args:
        gate_up: [N, 2 I] bfloat16, float16 or float32, without gaps: the gate's components, then those of up.

    Returns:
        [N, I], computed in float32 and rounded where LlamaMLP of transformers rounds: silu(gate), then the product.

    Raises:
        ValueError: the tensor's shape, type or layout is not as above.
    """
    if gate_up.dim() != 2 or gate_up.shape[1] % 2:
        raise ValueError(f"gate_up must be [N, 2 I], found {list(gate_up.shape)}")
    check_dtype("gate_up", gate_up)
    num_tokens, size = gate_up.shape[0], gate_up.shape[1] // 2
    check_tensor("gate_up", gate_up, (num_tokens, 2 * size), gate_up.dtype)
    activated = torch.empty(num_tokens, size, dtype=gate_up.dtype, device=gate_up.device)
    if activated.numel() == 0:
        return activated
    starts_early = overlaps(num_tokens)
    _silu_mul_kernel[(num_tokens, triton.cdiv(size, BLOCK))](
        gate_up=gate_up,
        activated=activated,
        size=size,
        BLOCK=BLOCK,
        OVERLAPS=starts_early,
        launch_pdl=starts_early,
        num_warps=NUM_WARPS,
    )
    return activated
