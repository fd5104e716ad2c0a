"""Rotate queries and keys, store keys and values. Twin of harness.models.fused.reference.rotate_and_store.

    [a b] -> [a cos - b sin, b cos + a sin]        a and b the halves of a head, cos and sin those of the position
    before it, where a layer has such norms (Qwen3): head -> weight * head / sqrt(mean(head^2) + eps)

One program takes some heads of one token, all of one kind: queries, keys or values. The projection may be given as
shares, which harness.models.fused.linear leaves: they are summed in order.
Source: Su et al., RoFormer: Enhanced Transformer with Rotary Position Embedding (2021).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from harness.models.fp8_linear import FP8
from harness.models.fused.checks import DTYPES, check_cache, check_rows, check_table, check_tensor
from harness.models.fused.overlap import overlaps

MAX_HEADS = 8
"""Heads of a program, if there are as many key heads. 8 heads of 128 components, halved, are 64 16-byte loads of a
2-byte type from each half, one of each a thread of 2 warps. 64 tokens of 32 query and 8 key heads make 384 programs,
nearly 3 for each of 132 multiprocessors: all their loads, 0.8 MB in all, are under way at once."""
COMPONENTS_PER_WARP = 512
"""Of both halves: 16 a thread."""


@triton.jit
def _load_halves(token_heads, heads, inside, share_stride, dtype, SHARES: tl.constexpr, HALF: tl.constexpr):
    """Both halves of some heads, [HEADS, HALF] each, rounded to the type."""
    at = token_heads + heads[:, None] * (2 * HALF) + tl.arange(0, HALF)[None, :]
    first = tl.load(at, mask=inside[:, None], other=0.0)
    second = tl.load(at + HALF, mask=inside[:, None], other=0.0)
    for share in tl.static_range(1, SHARES):
        first += tl.load(at + share * share_stride, mask=inside[:, None], other=0.0)
        second += tl.load(at + share * share_stride + HALF, mask=inside[:, None], other=0.0)
    return first.to(dtype), second.to(dtype)


@triton.jit
def _to_fp8(values):
    """uint8 of e4m3, as harness.models.fp8_linear.to_fp8 rounds: ties to even, and no more than the largest."""
    wide = values.to(tl.float32)
    size = tl.minimum(tl.abs(wide), 448.0)
    bits = size.to(tl.uint32, bitcast=True)
    # 20 of 23 bits of the fraction are rounded away; the exponent's bias is 7 where it was 127
    rounded = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - (120 << 3)
    # below 2^-6 in steps of 2^-9, which are the last bits of floats from 2^14 on
    steps = (size + 16384.0).to(tl.uint32, bitcast=True) - 0x46800000
    code = tl.where(size < 0.015625, steps, rounded)
    # what is no number stays none
    code = tl.where(tl.abs(wide) <= float("inf"), code, 0x7F)
    return (code | (wide.to(tl.uint32, bitcast=True) >> 24 & 0x80)).to(tl.uint8)


@triton.jit
def _store_halves(token_heads, heads, stride, inside, first, second, HALF: tl.constexpr, IN_FP8: tl.constexpr):
    """Write both halves of some heads, which lie `stride` apart."""
    if IN_FP8:
        first, second = _to_fp8(first), _to_fp8(second)
    at = token_heads + heads.to(tl.int64)[:, None] * stride + tl.arange(0, HALF)[None, :]
    tl.store(at, first, mask=inside[:, None])
    tl.store(at + HALF, second, mask=inside[:, None])


@triton.jit
def _turn(first, second, norm, eps, angles, known, HALF: tl.constexpr):
    """Normalize, if there is a norm, and rotate; float32 inside, rounded once.

    Args:
        angles: pointer to the position's line of the table.
        known: bool, whether the table holds the position.
    """
    dtype = first.dtype
    first, second = first.to(tl.float32), second.to(tl.float32)
    columns = tl.arange(0, HALF)
    cosine = tl.load(angles + columns, mask=known & (columns < HALF), other=0.0)[None, :]
    sine = tl.load(angles + HALF + columns, mask=known & (columns < HALF), other=0.0)[None, :]
    if norm is not None:
        squares = tl.sum(first * first, axis=1) + tl.sum(second * second, axis=1)
        inverse = tl.rsqrt(squares / (2 * HALF) + eps)[:, None]
        first *= inverse * tl.load(norm + columns).to(tl.float32)[None, :]
        second *= inverse * tl.load(norm + HALF + columns).to(tl.float32)[None, :]
    return (first * cosine - second * sine).to(dtype), (second * cosine + first * sine).to(dtype)


@triton.jit
def _rotate_and_store_kernel(
    qkv,  # [N, (Hq + 2 Hk) * D]; [P, N, (Hq + 2 Hk) * D] float32 where there are shares
    table,  # [C', D] float32
    query_norm,  # [D], None for no norm
    key_norm,  # [D], None for no norm
    queries,  # [N, Hq, D]
    keys,  # [S, Hk, C, D]
    values,  # [S, Hk, C, D]
    slots,  # [R] int64
    starts,  # [R] int64
    positions,  # [R, T] int64 to rotate by; None where they are the places
    num_tokens,  # T
    num_positions,  # C'
    capacity,  # C
    slot_stride,
    head_stride,
    position_stride,
    eps,
    QUERY_HEADS: tl.constexpr,
    KEY_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    HEADS: tl.constexpr,
    SHARES: tl.constexpr,  # P; 1 where there are none
    IN_FP8: tl.constexpr,  # keys and values, which are given as uint8
    OVERLAPS: tl.constexpr,
):
    if OVERLAPS:
        gdc_launch_dependents()
        gdc_wait()
    QUERY_BLOCKS: tl.constexpr = (QUERY_HEADS + HEADS - 1) // HEADS
    KEY_BLOCKS: tl.constexpr = (KEY_HEADS + HEADS - 1) // HEADS
    block = tl.program_id(1)
    row = tl.program_id(0) // num_tokens
    at = tl.load(starts + row) + tl.program_id(0) % num_tokens
    token = tl.program_id(0).to(tl.int64)
    position = at
    if positions is not None:
        position = tl.load(positions + token)
    angles = table + position * (2 * HALF)
    token_heads = qkv + token * ((QUERY_HEADS + 2 * KEY_HEADS) * 2 * HALF)
    share_stride = tl.num_programs(0).to(tl.int64) * ((QUERY_HEADS + 2 * KEY_HEADS) * 2 * HALF)
    dtype = queries.dtype.element_ty
    if block < QUERY_BLOCKS:
        heads = block * HEADS + tl.arange(0, HEADS)
        inside = heads < QUERY_HEADS
        first, second = _load_halves(token_heads, heads, inside, share_stride, dtype, SHARES, HALF)
        first, second = _turn(first, second, query_norm, eps, angles, position < num_positions, HALF)
        token_queries = queries + token * (QUERY_HEADS * 2 * HALF)
        _store_halves(token_queries, heads, 2 * HALF, inside, first, second, HALF, False)
    else:
        block -= QUERY_BLOCKS
        heads = block % KEY_BLOCKS * HEADS + tl.arange(0, HEADS)
        inside = heads < KEY_HEADS
        place = tl.load(slots + row) * slot_stride + at * position_stride
        stored = inside & (at < capacity)
        token_keys = token_heads + QUERY_HEADS * 2 * HALF
        if block < KEY_BLOCKS:
            first, second = _load_halves(token_keys, heads, inside, share_stride, dtype, SHARES, HALF)
            first, second = _turn(first, second, key_norm, eps, angles, position < num_positions, HALF)
            _store_halves(keys + place, heads, head_stride, stored, first, second, HALF, IN_FP8)
        else:
            token_values = token_keys + KEY_HEADS * 2 * HALF
            first, second = _load_halves(token_values, heads, inside, share_stride, dtype, SHARES, HALF)
            _store_halves(values + place, heads, head_stride, stored, first, second, HALF, IN_FP8)


def rotate_and_store(
    qkv: Tensor,
    table: Tensor,
    keys: Tensor,
    values: Tensor,
    slots: Tensor,
    starts: Tensor,
    query_norm: Tensor | None = None,
    key_norm: Tensor | None = None,
    eps: float = 0.0,
    positions: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Take a joint projection apart: rotate queries and keys, store keys and values at their slots and positions.

    Where transformers rounds the norm, the angles and each product to the type, this rounds once, at the end.

    Args:
        qkv: [N, (Hq + 2 Hk) * D] bfloat16, float16 or float32, without gaps: queries, keys, values of each token; or
            [P, N, (Hq + 2 Hk) * D] float32, shares that are summed in order and rounded to the type.
        table: [C', D] float32 of harness.models.fused.rope_table, with at least C positions.
        keys, values: [S, Hk, C, D] of the type or rounded to 8 bits, written at (slots[r], :, starts[r] + t). A
            position beyond the capacity is not written, and what its query returns has no meaning.
        slots: [R] int64 in [0, S); rows that share a slot and a position (padding) leave either's values there.
        starts: [R] int64, 0 or more.
        query_norm, key_norm: [D] weights of a norm of each head; both or neither.
        eps: of those norms.
        positions: [R, T] int64 to rotate by, where they are not the places, starts[r] + t.
        dtype: the type; None for that of the keys.

    Returns:
        The rotated queries, [R, T, Hq, D].
    """
    dtype, shared, in_fp8 = dtype or keys.dtype, qkv.dim() == 3, keys.dtype is FP8
    if dtype not in DTYPES:
        raise ValueError(f"dtype must be bfloat16, float16 or float32, found {dtype}; say it beside keys of 8 bits")
    check_cache(keys, values, dtype if shared else qkv.dtype)
    check_rows(slots, starts)
    _, num_key_heads, capacity, width = keys.shape
    num_query_heads = _num_query_heads(qkv, len(slots), num_key_heads, width)
    check_tensor("qkv", qkv, qkv.shape, torch.float32 if shared else dtype)
    num_tokens = qkv.shape[-2] // len(slots)
    check_table(table, width, capacity)
    if (query_norm is None) != (key_norm is None):
        raise ValueError("query_norm and key_norm must both be given or both be None, found one of them")
    if query_norm is not None and key_norm is not None:
        check_tensor("query_norm", query_norm, (width,), dtype)
        check_tensor("key_norm", key_norm, (width,), dtype)
    if positions is not None:
        check_tensor("positions", positions, (len(slots), num_tokens), torch.int64)
    queries = torch.empty(len(slots), num_tokens, num_query_heads, width, dtype=dtype, device=qkv.device)
    heads = min(MAX_HEADS, triton.next_power_of_2(num_key_heads))
    num_blocks = triton.cdiv(num_query_heads, heads) + 2 * triton.cdiv(num_key_heads, heads)
    starts_early = overlaps(qkv.shape[-2])
    _rotate_and_store_kernel[(qkv.shape[-2], num_blocks)](
        qkv=qkv,
        table=table,
        query_norm=query_norm,
        key_norm=key_norm,
        queries=queries,
        keys=keys.view(torch.uint8) if in_fp8 else keys,
        values=values.view(torch.uint8) if in_fp8 else values,
        slots=slots,
        starts=starts,
        positions=positions,
        num_tokens=num_tokens,
        num_positions=table.shape[0],
        capacity=capacity,
        slot_stride=keys.stride(0),
        head_stride=keys.stride(1),
        position_stride=keys.stride(2),
        eps=eps,
        QUERY_HEADS=num_query_heads,
        KEY_HEADS=num_key_heads,
        HALF=width // 2,
        HEADS=heads,
        SHARES=len(qkv) if shared else 1,
        IN_FP8=in_fp8,
        OVERLAPS=starts_early,
        launch_pdl=starts_early,
        num_warps=max(1, heads * width // COMPONENTS_PER_WARP),
    )
    return queries


def _num_query_heads(qkv: Tensor, num_rows: int, num_key_heads: int, width: int) -> int:
    """Hq of a joint projection; raises ValueError when it does not divide into rows and heads."""
    num_heads = qkv.shape[-1] // width - 2 * num_key_heads
    num_tokens = qkv.shape[-2] if qkv.dim() in (2, 3) else 0
    divides = num_tokens > 0 and qkv.shape[-1] % width == 0 and num_tokens % num_rows == 0
    if not divides or num_heads <= 0 or num_heads % num_key_heads or not qkv.is_contiguous():
        raise ValueError(
            f"qkv must be [R * T, (Hq + 2 Hk) * D] without gaps, with {num_rows} rows, {num_key_heads} key heads of "
            f"width {width} and a multiple of that many query heads; found {list(qkv.shape)} with strides "
            f"{qkv.stride()}"
        )
    return num_heads
