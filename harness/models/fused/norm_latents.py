"""Normalize latents, rotate and store the shared key. Twin of harness.models.fused.reference.norm_latents.

    q -> weight_q * q / sqrt(mean(q^2) + eps)             the latent of a token's queries, where there is one
    c -> weight_c * c / sqrt(mean(c^2) + eps)             the latent of its keys and values, stored
    k -> rotated by the angles of its position            the part of the key that all heads share, stored after c

One program takes the latent of a token's queries, another one what is stored of it.
Source: DeepSeek-AI, DeepSeek-V2 (2024), section 2.1; Su et al., RoFormer (2021).

Shapes: R rows, T tokens of a row, N = R * T, Q width of the queries' latent, L width of the keys' and values', P
rotated width, S slots, C positions of a slot.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from harness.models.fused.checks import check_dtype, check_latents, check_rows, check_table, check_tensor

COMPONENTS_PER_WARP = 256
"""Of a latent: 8 a thread, one 16-byte load of a 2-byte type."""


@triton.jit
def _scaled(latent, weight, inside, width, eps):
    """Normalized and rounded as LlamaRMSNorm of transformers does: before the weight and after it."""
    wide = latent.to(tl.float32)
    scaled = (wide * tl.rsqrt(tl.sum(wide * wide) / width + eps)).to(latent.dtype)
    return (tl.load(weight, mask=inside, other=0.0).to(tl.float32) * scaled.to(tl.float32)).to(latent.dtype)


@triton.jit
def _norm_latents_kernel(
    joint,  # [N, Q + L + P]
    query_norm,  # [Q], None where queries have no latent
    latent_norm,  # [L]
    table,  # [C', P] float32
    queries,  # [N, Q], None where they have no latent
    keys,  # [S, 1, C, L + P]
    slots,  # [R] int64
    starts,  # [R] int64
    num_tokens,  # T
    capacity,  # C
    slot_stride,
    position_stride,
    query_width,  # Q
    latent_width,  # L
    query_eps,
    latent_eps,
    HALF: tl.constexpr,  # P / 2
    HALF_PADDED: tl.constexpr,
    QUERY_PADDED: tl.constexpr,
    LATENT_PADDED: tl.constexpr,
    INTERLEAVED: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    states = joint + token * (query_width + latent_width + 2 * HALF)
    if tl.program_id(1) == 1:
        if query_norm is not None:
            at = tl.arange(0, QUERY_PADDED)
            query = tl.load(states + at, mask=at < query_width, other=0.0)
            scaled = _scaled(query, query_norm + at, at < query_width, query_width, query_eps)
            tl.store(queries + token * query_width + at, scaled, mask=at < query_width)
    else:
        row = tl.program_id(0) // num_tokens
        start, slot = tl.load(starts + row), tl.load(slots + row)
        position = start + tl.program_id(0) % num_tokens
        is_stored = position < capacity
        place = keys + slot * slot_stride + position * position_stride
        columns = tl.arange(0, LATENT_PADDED)
        held = columns < latent_width
        latent = tl.load(states + query_width + columns, mask=held, other=0.0)
        normed = _scaled(latent, latent_norm + columns, held, latent_width, latent_eps)
        tl.store(place + columns, normed, mask=held & is_stored)

        pairs = tl.arange(0, HALF_PADDED)
        inside = pairs < HALF
        first_at = 2 * pairs if INTERLEAVED else pairs
        apart: tl.constexpr = 1 if INTERLEAVED else HALF
        key = states + query_width + latent_width + first_at
        first = tl.load(key, mask=inside, other=0.0).to(tl.float32)
        second = tl.load(key + apart, mask=inside, other=0.0).to(tl.float32)
        angles = table + position * (2 * HALF) + pairs
        cosine = tl.load(angles, mask=inside & is_stored, other=0.0)
        sine = tl.load(angles + HALF, mask=inside & is_stored, other=0.0)
        turned = place + latent_width + pairs
        tl.store(turned, (first * cosine - second * sine).to(normed.dtype), mask=inside & is_stored)
        tl.store(turned + HALF, (second * cosine + first * sine).to(normed.dtype), mask=inside & is_stored)


def norm_latents(
    joint: Tensor,
    query_norm: Tensor | None,
    query_eps: float,
    latent_norm: Tensor,
    latent_eps: float,
    table: Tensor,
    keys: Tensor,
    slots: Tensor,
    starts: Tensor,
    interleaved: bool,
) -> Tensor | None:
    """Take the joint projection of a token apart, and store its latent and its rotated key.

    Args:
        joint: [N, Q + L + P] bfloat16, float16 or float32, without gaps: the latent of the queries (or the queries
            themselves, which stay as they are), that of keys and values, and the shared key.
        query_norm: [Q] weight of the first norm; None where queries have no latent.
        query_eps: added to the mean of its squares; latent_eps: of the other norm.
        latent_norm: [L] weight of the other norm.
        table: [C', P] float32 of harness.models.fused.rope_table, with at least C positions.
        keys: [S, 1, C, L + P], written at (slots[r], 0, starts[r] + t). Positions beyond C are not written.
        slots: [R] int64 in [0, S). starts: [R] int64, 0 or more.
        interleaved: whether components 2 j and 2 j + 1 of the key turn together, not j and j + P / 2. What is stored
            has the first of all pairs, then the second, either way.

    Returns:
        [N, Q] the normalized latent of the queries; None where there is none.
    """
    check_dtype("joint", joint)
    check_latents(keys, joint.dtype)
    check_rows(slots, starts)
    capacity, key_width = keys.shape[2:]
    latent_width = len(latent_norm)
    rotated_width = key_width - latent_width
    query_width = joint.shape[1] - key_width
    check_tensor("joint", joint, (len(joint), joint.shape[1]), joint.dtype)
    if len(joint) % len(slots) or not len(joint):
        raise ValueError(f"joint must have as many tokens for each of {len(slots)} rows, found {len(joint)}")
    check_table(table, rotated_width, capacity)
    check_tensor("latent_norm", latent_norm, (latent_width,), joint.dtype)
    queries = None
    if query_norm is not None:
        check_tensor("query_norm", query_norm, (query_width,), joint.dtype)
        queries = torch.empty(len(joint), query_width, dtype=joint.dtype, device=joint.device)
    padded = [triton.next_power_of_2(width) for width in (query_width, latent_width, rotated_width // 2)]
    _norm_latents_kernel[(len(joint), 1 if query_norm is None else 2)](
        joint=joint,
        query_norm=query_norm,
        latent_norm=latent_norm,
        table=table,
        queries=queries,
        keys=keys,
        slots=slots,
        starts=starts,
        num_tokens=len(joint) // len(slots),
        capacity=capacity,
        slot_stride=keys.stride(0),
        position_stride=keys.stride(2),
        query_width=query_width,
        latent_width=latent_width,
        query_eps=query_eps,
        latent_eps=latent_eps,
        HALF=rotated_width // 2,
        HALF_PADDED=padded[2],
        QUERY_PADDED=padded[0],
        LATENT_PADDED=padded[1],
        INTERLEAVED=interleaved,
        num_warps=max(1, min(8, max(padded[:2]) // COMPONENTS_PER_WARP)),
    )
    return queries
