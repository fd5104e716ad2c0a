"""Linear projections of a few tokens, by our kernel or by torch. Twins: those of harness.models.fused.reference.

linear        y = x W^T + bias
gated_linear  y = silu(x Wg^T + bias_g) * (x Wu^T + bias_u)        Wg and Wu the first and the second half of W
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

from harness.models.fp8_linear import FP8
from harness.models.fused.checks import written
from harness.models.fused.gated_activation import silu_mul
from harness.models.fused.skinny_linear import launch
from harness.models.fused.tilings import MULTIPROCESSORS, Tiling, tiling_for
from harness.models.fused.widen import widen

MEASURED_CAPABILITY = (9, 0)
"""Of the H200 that tilings were measured on; with its number of multiprocessors, an H100's too (SXM). On other GPUs all
products are torch's."""


def linear(
    states: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    scales: Tensor | None = None,
    splits: bool = False,
    out: Tensor | None = None,
) -> Tensor:
    """A linear projection, as torch.nn.functional.linear; shapes that it is no faster at go there.

    Args:
        states: [..., IN] bfloat16, float16 or float32.
        weight: [OUT, IN] of the same type, or of 8 bits. bias: [OUT], or None.
        scales: [OUT] float32 of a weight of 8 bits; None for others.
        splits: whether shares may be returned.
        out: of states [N, IN]: [N, OUT] of their type to write to and to return, whose rows have no gaps. None for new
            memory. There are no shares then.

    Returns:
        [..., OUT] of the type; or, if it may be, [P, ..., OUT] float32, shares that are to be summed in order and then
        rounded. Which of the two is a function of the shapes, the type and the GPU.
    """
    tiling = tiling_of(states, weight, gated=False, may_split=splits and out is None)
    if tiling is None:
        wide = weight if scales is None else widen(weight, scales, states.dtype)
        result = functional.linear(states, wide, bias)
        return result if out is None else written(result, out)
    return launch(states, weight, bias, tiling, gated=False, scales=scales, out=out)


def gated_linear(states: Tensor, weight: Tensor, bias: Tensor | None = None, scales: Tensor | None = None) -> Tensor:
    """silu(gate) * up, both of them linear projections of the states with one weight.

    Args:
        states: [..., IN] bfloat16, float16 or float32.
        weight: [2 I, IN] of the same type, or of 8 bits: rows of the gate, then those of up. bias: [2 I], or None.
        scales: [2 I] float32 of a weight of 8 bits; None for others.

    Returns:
        [..., I]. Rounded where LlamaMLP of transformers rounds: both projections, silu(gate), the product.

    Raises:
        ValueError: the weight has an odd number of rows.
    """
    if weight.dim() != 2 or weight.shape[0] % 2:
        raise ValueError(f"weight must be [2 I, IN], found {list(weight.shape)}; lay gate and up together")
    tiling = tiling_of(states, weight, gated=True, may_split=False)
    if tiling is None:
        projected = functional.linear(states, weight if scales is None else widen(weight, scales, states.dtype), bias)
        return silu_mul(projected.view(-1, weight.shape[0])).view(*states.shape[:-1], -1)
    return launch(states, weight, bias, tiling, gated=True, scales=scales)


def tiling_of(states: Tensor, weight: Tensor, gated: bool, may_split: bool) -> Tiling | None:
    """How to run the kernel; None where torch runs."""
    dtype = states.dtype if weight.dtype is FP8 else weight.dtype
    if dtype not in (torch.bfloat16, torch.float16):
        return None
    if weight.device.type != "cpu" and not is_as_measured(weight.device):
        return None
    return tiling_for(
        states.shape[:-1].numel(), weight.shape[1], weight.shape[0], gated, may_split, weight.dtype is FP8
    )


@cache
def is_as_measured(device: torch.device) -> bool:
    """Whether a GPU is of the kind that tilings were measured on; the meta device stands for the one that is there."""
    if device.type == "meta" and not torch.cuda.is_available():
        return True
    found = torch.cuda.get_device_properties(None if device.type == "meta" else device)
    return (found.major, found.minor) == MEASURED_CAPABILITY and found.multi_processor_count == MULTIPROCESSORS
