"""How many drafts each row of a round verifies, and which rows wait for the host. Twin of kernels.reference.defer.

A row is deferred where the tokens that every end of its reasoning ends with stand at its last token or at one of its
drafts. Nothing is decided for it then: it may need masks or a cut, which only the host can make. Steps without deferred
rows count their drafts in the same launch, so that waiting for the end of reasoning costs no operation of its own.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .contract import ANY_TOKEN, Deferred

ANY: tl.constexpr = tl.constexpr(ANY_TOKEN)


@triton.jit
def _defer_kernel(
    decides,  # [R]
    num_draft_tokens,  # [R]
    draft_ids,  # [R, K]
    token_ids,  # [>= R, C]
    lengths,  # [R]
    endings,  # [>= R, M]; not read where M = 0
    counts,  # [R]
    is_undecided,  # [R] as bytes
    num_drafts,  # K
    draft_stride,
    token_stride,
    NUM_MARKS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    role = tl.load(decides + row)
    drafted = tl.load(num_draft_tokens + row)
    is_round = role == 1
    count = tl.where(is_round, drafted, tl.minimum(role, 1) - 1)
    if NUM_MARKS > 0:
        length = tl.where(is_round, tl.load(lengths + row), 1)
        columns = tl.arange(0, BLOCK)
        looked_at = is_round & (columns <= drafted) & (columns <= num_drafts)
        is_whole = looked_at
        for back in tl.static_range(NUM_MARKS):
            wanted = tl.load(endings + row * NUM_MARKS + (NUM_MARKS - 1 - back))
            places = length - 1 + columns - back
            is_told = places < length
            told = tl.load(token_ids + row * token_stride + places, mask=looked_at & is_told & (places >= 0), other=-3)
            draft = tl.load(
                draft_ids + row * draft_stride + (places - length), mask=looked_at & (places >= length), other=-3
            )
            is_whole = is_whole & ((wanted == ANY) | (tl.where(is_told, told, draft) == wanted))
        count = tl.where(tl.max(is_whole.to(tl.int32), axis=0) > 0, -1, count)
    tl.store(counts + row, count)
    tl.store(is_undecided + row, (count < 0).to(tl.uint8))


def defer(
    decides: Tensor,
    num_draft_tokens: Tensor,
    draft_ids: Tensor,
    token_ids: Tensor,
    lengths: Tensor,
    endings: Tensor | None,
) -> Deferred:
    """How many drafts each row verifies, and which rows emit nothing.

    Args:
        decides: [R] int64, 1 for a row with a round of drafts, 2 for one that draws a token without any, else 0.
        num_draft_tokens: [R] int64, of a round.
        draft_ids: [R, K] int64.
        token_ids: [>= R, C] int64, the tokens of each row so far.
        lengths: [R] int64, how many; at least 1 in a round.
        endings: [>= R, M] int64, the tokens at the end of every end of reasoning; ANY_TOKEN fits every token, NO_TOKEN
            none, so that a row with one is never deferred. None: no row is.

    Returns:
        What `verify` takes for `num_draft_tokens`, and which rows emit nothing: those deferred and those
        with nothing to decide.

    Raises:
        ValueError: a tensor's shape, type or layout is not as above.
    """
    num_rows, num_drafts = draft_ids.shape
    rows = {"decides": decides, "num_draft_tokens": num_draft_tokens, "lengths": lengths}
    for name, tensor in rows.items():
        if tensor.shape != (num_rows,) or tensor.dtype != torch.int64 or not tensor.is_contiguous():
            raise ValueError(
                f"{name} must be [{num_rows}] int64 without gaps, one value per row of drafts; found "
                f"{list(tensor.shape)} {tensor.dtype}"
            )
    tables = {"draft_ids": draft_ids, "token_ids": token_ids} | ({} if endings is None else {"endings": endings})
    for name, tensor in tables.items():
        lies_together = tensor.stride(1) == 1 or tensor.shape[1] <= 1
        if tensor.dim() != 2 or len(tensor) < num_rows or tensor.dtype != torch.int64 or not lies_together:
            raise ValueError(
                f"{name} must have {num_rows} rows of int64 without gaps, found {list(tensor.shape)} {tensor.dtype}"
            )
    if endings is not None and not endings.is_contiguous():
        raise ValueError(f"endings must lie together, found strides {endings.stride()}")
    counts = torch.empty_like(decides)
    is_undecided = torch.empty(num_rows, dtype=torch.bool, device=decides.device)
    if num_rows == 0:
        return Deferred(counts, is_undecided)
    _defer_kernel[(num_rows,)](
        decides=decides,
        num_draft_tokens=num_draft_tokens,
        draft_ids=draft_ids,
        token_ids=token_ids,
        lengths=lengths,
        endings=decides if endings is None else endings,
        counts=counts,
        is_undecided=is_undecided.view(torch.uint8),
        num_drafts=num_drafts,
        draft_stride=draft_ids.stride(0),
        token_stride=token_ids.stride(0),
        NUM_MARKS=0 if endings is None else endings.shape[1],
        BLOCK=triton.next_power_of_2(num_drafts + 1),
        num_warps=1,
    )
    return Deferred(counts, is_undecided)
