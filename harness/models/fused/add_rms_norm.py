"""Add a residual and normalize. Twin of harness.models.fused.reference.add_rms_norm.

    total  = states + residual
    normed = weight * total / sqrt(mean(total^2) + eps)

Source: Zhang and Sennrich, Root Mean Square Layer Normalization (2019).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from harness.models.fused.checks import check_dtype, check_tensor

LANES_PER_WARP = 512
"""Components of a row for each warp of its program: 16 a thread, two 16-byte loads of each 2-byte tensor under way.

One program a row, because two programs would have to meet for the sum; a decoding forward has fewer rows than a GPU
has multiprocessors, and takes as long as one row does.
"""
MOST_WARPS = 16


@triton.jit
def _add_rms_norm_kernel(
    states,  # [N, H]
    residual,  # [N, H], None to add nothing
    weight,  # [H]
    normed,  # [N, H]
    total,  # [N, H], None where residual is
    hidden_size,
    eps,
    BLOCK: tl.constexpr,
):
    columns = tl.arange(0, BLOCK)
    inside = columns < hidden_size
    at = tl.program_id(0).to(tl.int64) * hidden_size + columns
    scale = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    loaded = tl.load(states + at, mask=inside, other=0.0)
    if residual is not None:
        added = loaded.to(tl.float32) + tl.load(residual + at, mask=inside, other=0.0).to(tl.float32)
        # Rounded before it is squared: the norm sees what the next layer will add to.
        loaded = added.to(loaded.dtype)
        tl.store(total + at, loaded, mask=inside)
    wide = loaded.to(tl.float32)
    scaled = (wide * tl.rsqrt(tl.sum(wide * wide) / hidden_size + eps)).to(loaded.dtype)
    tl.store(normed + at, (scale * scaled.to(tl.float32)).to(loaded.dtype), mask=inside)


def add_rms_norm(states: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Add the residual, if there is one, and normalize the sum.

    Args:
        states: [N, H] bfloat16, float16 or float32, without gaps.
        residual: as states; None to normalize the states themselves.
        weight: [H], of the same type.
        eps: added to the mean of the squares.

    Returns:
        (normed, total), [N, H] each. total is the sum, rounded to the type; without a residual it is states itself.
        normed is computed in float32 and rounded as LlamaRMSNorm of transformers does: before the weight and after it.

    Raises:
        ValueError: a tensor's shape, type or layout is not as above.
    """
    if states.dim() != 2:
        raise ValueError(f"states must be [N, H], found {list(states.shape)}; flatten the rows first")
    check_dtype("states", states)
    num_tokens, hidden_size = states.shape
    check_tensor("states", states, (num_tokens, hidden_size), states.dtype)
    check_tensor("weight", weight, (hidden_size,), states.dtype)
    if residual is not None:
        check_tensor("residual", residual, (num_tokens, hidden_size), states.dtype)
    normed = torch.empty_like(states)
    total = states if residual is None else torch.empty_like(states)
    if num_tokens == 0:
        return normed, total
    block = triton.next_power_of_2(hidden_size)
    _add_rms_norm_kernel[(num_tokens,)](
        states=states,
        residual=residual,
        weight=weight,
        normed=normed,
        total=None if residual is None else total,
        hidden_size=hidden_size,
        eps=eps,
        BLOCK=block,
        num_warps=max(1, min(MOST_WARPS, block // LANES_PER_WARP)),
    )
    return normed, total
