"""Put together what several programs found on shares of a row's keys; part of slot_attention and latent_attention.

    attended = sum_s w_s part_s / sum_s w_s,      w_s = 2^(l_s - max_s l_s)

part_s is the result of share s, already divided by its sum of exponentials, and l_s is log2 of that sum.
Source: Dao et al., Flash-Decoding for long-context inference (2023).

Shapes: P programs that share the keys of a row.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from harness.models.fused.overlap import overlaps

COMBINED_PER_WARP = 256
"""Components that a warp adds up: 8 a thread, two 16-byte loads."""
MAX_WARPS = 8


@triton.jit
def share(start, num_tokens, capacity, num_splits, BLOCK: tl.constexpr):
    """(keys of a row, keys of each of its programs): whole blocks, evenly, so that only the last programs go without.

    Only this and the results of the programs that have keys are ever looked at: nothing is set up or cleared.
    """
    length = tl.minimum(start + num_tokens, capacity).to(tl.int32)
    return length, tl.cdiv(tl.cdiv(length, BLOCK), num_splits) * BLOCK


@triton.jit
def _combine_splits_kernel(
    parts,  # [R, T, Hq, P, D] float32
    log_sums,  # [R, T, Hq, P] float32
    starts,  # [R] int64
    attended,  # [R, T, Hq, D]
    capacity,  # C
    num_splits,  # P
    TOKENS: tl.constexpr,
    QUERY_HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    WIDTH_PADDED: tl.constexpr,
    BLOCK: tl.constexpr,
    SPLITS_PADDED: tl.constexpr,
    OVERLAPS: tl.constexpr,
):
    if OVERLAPS:
        gdc_launch_dependents()
        gdc_wait()
    start = tl.load(starts + tl.program_id(0) // (TOKENS * QUERY_HEADS))
    length, keys_per_split = share(start, TOKENS, capacity, num_splits, BLOCK)
    place = tl.program_id(0).to(tl.int64)
    splits, columns = tl.arange(0, SPLITS_PADDED), tl.arange(0, WIDTH_PADDED)
    inside = columns < WIDTH
    written = splits < tl.cdiv(length, keys_per_split)
    logs = tl.load(log_sums + place * num_splits + splits, mask=written, other=-float("inf"))
    # A query's own position is seen, or the whole slot, so the maximum is finite.
    weights = tl.exp2(logs - tl.max(logs))
    at = (place * num_splits + splits)[:, None] * WIDTH + columns[None, :]
    part = tl.load(parts + at, mask=written[:, None] & inside[None, :], other=0.0)
    result = tl.sum(part * weights[:, None], axis=0) / tl.sum(weights)
    tl.store(attended + place * WIDTH + columns, result.to(attended.dtype.element_ty), mask=inside)


def new_parts(
    shape: tuple[int, int, int, int], width: int, device: torch.device
) -> tuple[Tensor, Tensor] | tuple[None, None]:
    """Room for what the programs find on their shares, as `combine_splits` takes it.

    Args:
        shape: (R, T, Hq, P).
        width: D.
        device: of the queries.

    Returns:
        (parts, log_sums), not set to anything; (None, None) where one program has all keys of a row.
    """
    if shape[-1] == 1:
        return None, None
    parts = torch.empty(*shape, width, dtype=torch.float32, device=device)
    return parts, torch.empty(shape, dtype=torch.float32, device=device)


def combine_splits(
    parts: Tensor, log_sums: Tensor, starts: Tensor, attended: Tensor, capacity: int, block: int
) -> None:
    """Write what rows attended to.

    Args:
        parts: [R, T, Hq, P, D] float32. Programs that had no keys have written nothing there.
        log_sums: [R, T, Hq, P] float32, log2 of the sums of exponentials; -inf where a query saw none of the keys.
        starts: [R] int64.
        attended: [R, T, Hq * D], written, its heads without gaps.
        capacity: C. block: keys of a block. Both as the programs shared the keys out.
    """
    num_rows, num_tokens, num_heads, num_splits, width = parts.shape
    splits_padded = triton.next_power_of_2(num_splits)
    starts_early = overlaps(num_rows * num_tokens)
    _combine_splits_kernel[(log_sums.numel() // num_splits,)](
        parts=parts,
        log_sums=log_sums,
        starts=starts,
        attended=attended,
        capacity=capacity,
        num_splits=num_splits,
        TOKENS=num_tokens,
        QUERY_HEADS=num_heads,
        WIDTH=width,
        WIDTH_PADDED=triton.next_power_of_2(width),
        BLOCK=block,
        SPLITS_PADDED=splits_padded,
        OVERLAPS=starts_early,
        launch_pdl=starts_early,
        num_warps=max(1, min(MAX_WARPS, splits_padded * width // COMBINED_PER_WARP)),
    )
