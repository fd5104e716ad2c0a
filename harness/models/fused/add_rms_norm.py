"""Add a residual, and normalize. Twins: add_rms_norm and add_shares of harness.models.fused.reference.

    total  = states + residual
    normed = weight * total / sqrt(mean(total^2) + eps)

The states may be given as shares, which harness.models.fused.linear leaves: they are summed in order.

Source: Zhang and Sennrich, Root Mean Square Layer Normalization (2019).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from harness.models.fused.checks import check_dtype, check_tensor
from harness.models.fused.overlap import overlaps

LANES_PER_WARP = 512
"""Components of a row for each warp of its program: 16 a thread, two 16-byte loads of each 2-byte tensor under way.

One program a row, because two programs would have to meet for the sum; a decoding forward has fewer rows than a GPU
has multiprocessors, and takes as long as one row does.
"""
MAX_WARPS = 16


@triton.jit
def _add_rms_norm_kernel(
    states,  # [N, H]; [P, N, H] float32 where there are shares
    residual,  # [N, H], None to add nothing
    weight,  # [H], None to add only
    normed,  # [N, H], None to add only
    total,  # [N, H], None where it is the states
    hidden_size,
    eps,
    SHARES: tl.constexpr,  # P; 1 where there are none
    BLOCK: tl.constexpr,
    OVERLAPS: tl.constexpr,
):
    if OVERLAPS:
        gdc_launch_dependents()
        gdc_wait()
    columns = tl.arange(0, BLOCK)
    inside = columns < hidden_size
    at = tl.program_id(0).to(tl.int64) * hidden_size + columns
    share_stride = tl.num_programs(0).to(tl.int64) * hidden_size
    if weight is not None:
        scale = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    loaded = tl.load(states + at, mask=inside, other=0.0)
    for share in tl.static_range(1, SHARES):
        loaded += tl.load(states + share * share_stride + at, mask=inside, other=0.0)
    if normed is not None:
        loaded = loaded.to(normed.dtype.element_ty)
    else:
        loaded = loaded.to(total.dtype.element_ty)
    if residual is not None:
        added = loaded.to(tl.float32) + tl.load(residual + at, mask=inside, other=0.0).to(tl.float32)
        # Rounded before it is squared: the norm sees what the next layer will add to.
        loaded = added.to(loaded.dtype)
    if total is not None:
        tl.store(total + at, loaded, mask=inside)
    if normed is not None:
        wide = loaded.to(tl.float32)
        scaled = (wide * tl.rsqrt(tl.sum(wide * wide) / hidden_size + eps)).to(loaded.dtype)
        tl.store(normed + at, (scale * scaled.to(tl.float32)).to(loaded.dtype), mask=inside)


def add_rms_norm(states: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Add the residual, if there is one, and normalize the sum.

    Args:
        states: [N, H] bfloat16, float16 or float32, without gaps; or [P, N, H] float32, P > 1 shares that are summed in
            order and rounded to the type of the weight.
        residual: [N, H] of the type; None to normalize the states themselves.
        weight: [H], of the type.
        eps: added to the mean of the squares.

    Returns:
        (normed, total), [N, H] each. total is the sum, rounded to the type; without a residual and
        without shares it is states itself.
        normed is computed in float32 and rounded as LlamaRMSNorm of transformers does: before the weight and after it.
    """
    shared, dtype = _are_shares(states), _checked_dtype(states, weight)
    check_tensor("weight", weight, states.shape[-1:], dtype)
    if residual is not None:
        check_tensor("residual", residual, states.shape[-2:], dtype)
    normed = torch.empty(states.shape[-2:], dtype=dtype, device=states.device)
    total = torch.empty_like(normed) if shared or residual is not None else states
    _launch(states, residual, weight, normed, None if total is states else total, eps)
    return normed, total


def add_shares(states: Tensor, residual: Tensor) -> Tensor:
    """Sum the shares, if there are any, and add the residual: [N, H] of its type.

    Args:
        states: [N, H] of the residual's type; or shares, as for add_rms_norm.
        residual: [N, H] bfloat16, float16 or float32.
    """
    check_tensor("residual", residual, states.shape[-2:], _checked_dtype(states, residual))
    total = torch.empty_like(residual)
    _launch(states, residual, None, None, total, 0.0)
    return total


def _are_shares(states: Tensor) -> bool:
    return states.dim() == 3 and len(states) > 1


def _checked_dtype(states: Tensor, other: Tensor) -> torch.dtype:
    """The type of the sum of the states; `other` has that of shares. Raises ValueError for wrong states."""
    shared = _are_shares(states)
    if not shared and states.dim() != 2:
        raise ValueError(f"states must be [N, H], found {list(states.shape)}; flatten the rows first")
    check_dtype("states", other if shared else states)
    check_tensor("states", states, states.shape, torch.float32 if shared else states.dtype)
    return other.dtype if shared else states.dtype


def _launch(
    states: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    normed: Tensor | None,
    total: Tensor | None,
    eps: float,
) -> None:
    """Run the kernel, if there are tokens; what is None is neither read nor written."""
    num_tokens, hidden_size = states.shape[-2:]
    if num_tokens == 0:
        return
    block, starts_early = triton.next_power_of_2(hidden_size), overlaps(num_tokens)
    _add_rms_norm_kernel[(num_tokens,)](
        states=states,
        residual=residual,
        weight=weight,
        normed=normed,
        total=total,
        hidden_size=hidden_size,
        eps=eps,
        SHARES=len(states) if _are_shares(states) else 1,
        BLOCK=block,
        OVERLAPS=starts_early,
        launch_pdl=starts_early,
        num_warps=max(1, min(MAX_WARPS, block // LANES_PER_WARP)),
    )
