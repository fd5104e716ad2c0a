"""What a round decided, packed for the host and taken into the slots. Twin of kernels.reference.commit.

One launch in the place of sixteen operations on a few numbers each.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .contract import Slots, VerificationResult


@triton.jit
def _commit_kernel(
    emitted,  # [R, T]
    num_accepted,  # [R]
    invalid,  # [R] as bytes
    draft_ids,  # [R, K]
    counts,  # [R]
    packed,  # [R, T + K + 3]
    token_ids,  # [>= R, C]; this and what follows is None where the slots stay as they are
    lengths,  # [>= R]
    rounds,  # [>= R]
    capacity,  # C
    draft_stride,
    WIDTH: tl.constexpr,
    NUM_DRAFTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    accepted, count = tl.load(num_accepted + row), tl.load(counts + row)
    tokens = tl.load(emitted + row * WIDTH + columns, mask=columns < WIDTH, other=0)
    drafts = tl.load(draft_ids + row * draft_stride + columns, mask=columns < NUM_DRAFTS, other=0)
    out = packed + row * (WIDTH + NUM_DRAFTS + 3)
    tl.store(out + columns, tokens, mask=columns < WIDTH)
    tl.store(out + WIDTH + columns, drafts, mask=columns < NUM_DRAFTS)
    numbers = out + (WIDTH + NUM_DRAFTS)
    tl.store(numbers, accepted)
    tl.store(numbers + 1, count)
    tl.store(numbers + 2, tl.load(invalid + row).to(tl.int64))
    if token_ids is not None:
        length = tl.load(lengths + row)
        num_emitted = tl.where(count >= 0, accepted + 1, 0)
        places = tl.minimum(length + columns, capacity - 1)
        tl.store(token_ids + row * capacity + places, tokens, mask=columns < tl.minimum(num_emitted, WIDTH))
        tl.store(lengths + row, length + num_emitted)
        tl.store(rounds + row, tl.load(rounds + row) + (count >= 0))


def commit(verdict: VerificationResult, draft_ids: Tensor, counts: Tensor, slots: Slots | None) -> Tensor:
    """Pack what a round decided, and append what it emitted to the tokens of each slot.

    Args:
        verdict: fields [R], tokens [R, T].
        draft_ids: [R, K] int64.
        counts: [R] int64, draft tokens that were verified; -1 for a row that emits nothing.
        slots: of the rows, changed in place; None leaves them as they are, as long as the host may still cut.

    Returns:
        [R, T + K + 3] int64: emitted tokens, draft tokens, number accepted, number drafted, invalid.

    Raises:
        ValueError: a tensor's shape, type or layout is not as above.
    """
    (num_rows, width), num_drafts = verdict.token_ids.shape, draft_ids.shape[1]
    columns = {"num_accepted": verdict.num_accepted, "counts": counts}
    tables = {"token_ids": verdict.token_ids}
    if slots is not None:
        columns |= {"slots.lengths": slots.lengths[:num_rows], "slots.rounds": slots.rounds[:num_rows]}
        tables |= {"slots.token_ids": slots.token_ids}
    for name, tensor in columns.items():
        if tensor.shape != (num_rows,) or tensor.dtype != torch.int64 or not tensor.is_contiguous():
            raise ValueError(
                f"{name} must be [{num_rows}] int64 without gaps, found {list(tensor.shape)} {tensor.dtype}"
            )
    for name, tensor in tables.items():
        if len(tensor) < num_rows or tensor.dtype != torch.int64 or not tensor.is_contiguous():
            raise ValueError(
                f"{name} must have {num_rows} rows of int64 without gaps, found {list(tensor.shape)} {tensor.dtype}"
            )
    if len(draft_ids) != num_rows or draft_ids.dtype != torch.int64 or (num_drafts > 1 and draft_ids.stride(1) != 1):
        raise ValueError(
            f"draft_ids must have {num_rows} rows of int64 without gaps, found {list(draft_ids.shape)} "
            f"{draft_ids.dtype}"
        )
    packed = torch.empty(num_rows, width + num_drafts + 3, dtype=torch.int64, device=counts.device)
    if num_rows == 0:
        return packed
    _commit_kernel[(num_rows,)](
        emitted=verdict.token_ids,
        num_accepted=verdict.num_accepted,
        invalid=verdict.invalid.view(torch.uint8),
        draft_ids=draft_ids,
        counts=counts,
        packed=packed,
        token_ids=None if slots is None else slots.token_ids,
        lengths=None if slots is None else slots.lengths,
        rounds=None if slots is None else slots.rounds,
        capacity=0 if slots is None else slots.token_ids.shape[1],
        draft_stride=draft_ids.stride(0),
        WIDTH=width,
        NUM_DRAFTS=num_drafts,
        BLOCK=triton.next_power_of_2(max(width, num_drafts)),
        num_warps=1,
    )
    return packed
