"""The kernel of products of a few tokens with a large weight, which harness.models.fused.linear calls.

    product         y = x W^T + bias
    where GATED     y = silu(x Wg^T + bias_g) * (x Wu^T + bias_u)        Wg and Wu the first and the second half of W

W may take 8 bits (harness.models.fp8_linear): it is widened to the type of the states when it has been read, and its
rows' scales multiply the sums.

Such a product takes as long as its weight takes to be read. Rows of the weight are shared out evenly over programs, as
many for each multiprocessor; a tile has more rows than a program's share, and rows beyond it are not read. Where that
would leave a program few rows beside the tokens that it reads too, components of the tokens are shared out as well, and
the shares are summed by the operation that takes them: `linear` returns them when it may. Rows of the weight are the
rows of the tensor cores' product, tokens its columns. Every sum is made in one order: the same shapes give the same
bits. This module does not know which tiling is fast: harness.models.fused.tilings does.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from harness.models.fp8_linear import FP8
from harness.models.fused.checks import check_matrix, check_tensor
from harness.models.fused.overlap import overlaps
from harness.models.fused.tilings import MIN_TOKENS, Tiling


@triton.jit
def _multiply(tile, up_tile, state, product, gate, GATED: tl.constexpr):
    """Add to the products of a tile of weights, or of those of gate and up, with some tokens: (product, gate)."""
    if GATED:
        gate = tl.dot(tile, state, gate)
        product = tl.dot(up_tile, state, product)
    else:
        product = tl.dot(tile, state, product)
    return product, gate


@triton.jit
def _store_tile(
    result,  # [N, OUT] of a share
    result_stride,
    dtype,  # of the states
    scales,  # [OUT or 2 OUT] float32 of a weight of 8 bits, or None
    bias,  # [OUT or 2 OUT] of the type, or None
    product,  # [BLOCK_OUT, TOKENS] float32
    gate,  # as product; read where GATED
    rows,
    inside,
    tokens,
    num_tokens,
    out_features,
    adds_bias,
    GATED: tl.constexpr,
):
    """Write a tile, and where there is a gate what follows it, rounded where transformers rounds."""
    if scales is not None:
        up_scales = scales + out_features if GATED else scales
        product *= tl.load(up_scales + rows, mask=inside, other=0.0)[:, None]
        if GATED:
            gate *= tl.load(scales + rows, mask=inside, other=0.0)[:, None]
    if bias is not None:
        up_bias = bias + out_features if GATED else bias
        product += tl.load(up_bias + rows, mask=inside & adds_bias, other=0.0).to(tl.float32)[:, None]
    if GATED:
        if bias is not None:
            gate += tl.load(bias + rows, mask=inside, other=0.0).to(tl.float32)[:, None]
        wide = gate.to(dtype).to(tl.float32)
        silu = (wide / (1.0 + tl.exp(-wide))).to(dtype)
        product = silu.to(tl.float32) * product.to(dtype).to(tl.float32)
    stride = out_features if result_stride is None else result_stride
    at = tokens.to(tl.int64)[None, :] * stride + rows[:, None]
    kept = inside[:, None] & (tokens < num_tokens)[None, :]
    tl.store(result + at, product.to(result.dtype.element_ty), mask=kept)


@triton.jit
def _load_tile(rows, at, inside, dtype, IN_FP8: tl.constexpr):
    """A tile of the weight, in the type of the states."""
    tile = tl.load(rows[:, None] + at, mask=inside[:, None], other=0)
    if IN_FP8:
        tile = tile.to(tl.float8e4nv, bitcast=True).to(dtype)
    return tile


@triton.jit(do_not_specialize=["num_tokens", "rows_per_program", "steps_per_split"])
def _skinny_linear_kernel(
    states,  # [N, IN]
    weight,  # [OUT, IN]; [2 OUT, IN] where GATED
    scales,  # [OUT] or [2 OUT] float32 of a weight of 8 bits, which is given as uint8; else None
    bias,  # [OUT] or [2 OUT], None for none
    result,  # [P, N, OUT]
    result_stride,  # from a token's results to the next one's; None where they lie without gaps
    num_tokens,  # N
    in_features,  # IN
    out_features,  # OUT
    rows_per_program,
    steps_per_split,
    TOKENS: tl.constexpr,
    MORE_TOKENS: tl.constexpr,
    HAS_MORE: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
    BLOCK_IN: tl.constexpr,
    GATED: tl.constexpr,
    STAGES: tl.constexpr,
    OVERLAPS: tl.constexpr,
):
    if OVERLAPS:
        gdc_launch_dependents()
        gdc_wait()
    IN_FP8: tl.constexpr = scales is not None
    dtype = states.dtype.element_ty
    split = tl.program_id(1)
    lanes, columns = tl.arange(0, BLOCK_OUT), tl.arange(0, BLOCK_IN)
    rows = tl.program_id(0) * rows_per_program + lanes
    inside = (lanes < rows_per_program) & (rows < out_features)
    first_step = split * steps_per_split
    last_step = tl.minimum(first_step + steps_per_split, in_features // BLOCK_IN)
    in_rows = weight + rows.to(tl.int64) * in_features
    # Rows of up lie behind those of the gate.
    behind = tl.cast(out_features, tl.int64) * in_features
    tokens = tl.arange(0, TOKENS)
    more_tokens = TOKENS + tl.arange(0, MORE_TOKENS)
    product = tl.zeros((BLOCK_OUT, TOKENS), tl.float32)
    more_product = tl.zeros((BLOCK_OUT, MORE_TOKENS), tl.float32)
    gate, more_gate = product, more_product
    for step in tl.range(first_step, last_step, num_stages=STAGES):
        at = (step * BLOCK_IN + columns)[None, :]
        tile = _load_tile(in_rows, at, inside, dtype, IN_FP8)
        up_tile = tile
        if GATED:
            up_tile = _load_tile(in_rows + behind, at, inside, dtype, IN_FP8)
        in_states = states + tokens[:, None] * in_features + at
        state = tl.load(in_states, mask=(tokens < num_tokens)[:, None], other=0.0)
        product, gate = _multiply(tile, up_tile, tl.trans(state), product, gate, GATED)
        if HAS_MORE:
            in_states = states + more_tokens[:, None] * in_features + at
            state = tl.load(in_states, mask=(more_tokens < num_tokens)[:, None], other=0.0)
            more_product, more_gate = _multiply(tile, up_tile, tl.trans(state), more_product, more_gate, GATED)

    first_split = split == 0
    to_share = result + split.to(tl.int64) * num_tokens * out_features
    _store_tile(
        to_share,
        result_stride,
        dtype,
        scales,
        bias,
        product,
        gate,
        rows,
        inside,
        tokens,
        num_tokens,
        out_features,
        first_split,
        GATED,
    )
    if HAS_MORE:
        _store_tile(
            to_share,
            result_stride,
            dtype,
            scales,
            bias,
            more_product,
            more_gate,
            rows,
            inside,
            more_tokens,
            num_tokens,
            out_features,
            first_split,
            GATED,
        )


def launch(
    states: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    tiling: Tiling,
    gated: bool,
    scales: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Run the kernel as a tiling says.

    Args:
        states, weight, bias, scales, out: as those of linear, or of gated_linear.
        tiling: its block_in must divide IN; columns() must hold the tokens.
        gated: the rows are a gate's and those of up.

    Returns:
        As linear or gated_linear; shares where the tiling splits.
    """
    in_features, out_features = weight.shape[1], weight.shape[0] // (2 if gated else 1)
    states = states.contiguous()
    check_tensor("states", states, (*states.shape[:-1], in_features), states.dtype)
    check_tensor("weight", weight, weight.shape, states.dtype if scales is None else FP8)
    if bias is not None:
        check_tensor("bias", bias, (weight.shape[0],), states.dtype)
    if scales is not None:
        check_tensor("scales", scales, (weight.shape[0],), torch.float32)
        weight = weight.view(torch.uint8)
    num_tokens = states.shape[:-1].numel()
    split = tiling.num_splits > 1
    shape = (*([tiling.num_splits] if split else []), *states.shape[:-1], out_features)
    if out is None:
        result = torch.empty(shape, dtype=torch.float32 if split else states.dtype, device=states.device)
    else:
        if split:
            raise ValueError(f"out is for a tiling with num_splits 1, found {tiling.num_splits}, which leaves shares")
        check_matrix(out, shape, states.dtype)
        result = out
    num_steps = in_features // tiling.block_in
    first, more = tiling.columns(num_tokens)
    starts_early = overlaps(num_tokens) and scales is None
    _skinny_linear_kernel[(triton.cdiv(out_features, tiling.rows), tiling.num_splits)](
        states=states,
        weight=weight,
        scales=scales,
        bias=bias,
        result=result,
        result_stride=None if result.is_contiguous() else result.stride(0),
        num_tokens=num_tokens,
        in_features=in_features,
        out_features=out_features,
        rows_per_program=tiling.rows,
        steps_per_split=triton.cdiv(num_steps, tiling.num_splits),
        TOKENS=first,
        MORE_TOKENS=max(MIN_TOKENS, more),
        HAS_MORE=more > 0,
        BLOCK_OUT=tiling.block_out,
        BLOCK_IN=tiling.block_in,
        GATED=gated,
        STAGES=tiling.num_stages,
        OVERLAPS=starts_early,
        launch_pdl=starts_early,
        num_warps=tiling.num_warps,
    )
    return result
