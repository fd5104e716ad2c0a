"""Where each request's rows begin among packed target rows: K_r + 1 of each, request after request.

The numbers of draft tokens lie on the device, where nothing waits for them. So rows that do not add up are not refused,
as kernels.reference.target_rows does, but found here: no request is placed then, and kernels.chain.row_epilogue flags
them all.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..contract import Draft

UNPLACED: tl.constexpr = tl.constexpr(-2)
"""In the place of a number of draft tokens: which rows are the request's is not known."""
REQUESTS_AT_A_TIME = 1024


@triton.jit
def _load_counts(counts, requests, num_requests, width):
    """[requests] int64 number of draft tokens of each request, -1 for a padded slot; what is too large is K."""
    found = tl.load(counts + requests, mask=requests < num_requests, other=-1)
    return tl.minimum(tl.maximum(found, -1), width)


@triton.jit
def _place_rows_kernel(
    counts,  # [R]
    first_rows,  # [R]
    placed_counts,  # [R]
    num_requests,  # R
    num_rows,  # N
    width,  # K
    REQUESTS: tl.constexpr,
):
    total = tl.full((), 0, tl.int64)
    for first in tl.range(0, num_requests, REQUESTS):
        total += tl.sum(_load_counts(counts, first + tl.arange(0, REQUESTS), num_requests, width) + 1, axis=0)
    begin = tl.full((), 0, tl.int64)
    for first in tl.range(0, num_requests, REQUESTS):
        requests = first + tl.arange(0, REQUESTS)
        inside = requests < num_requests
        found = _load_counts(counts, requests, num_requests, width)
        tl.store(first_rows + requests, begin + tl.cumsum(found + 1, axis=0) - found - 1, mask=inside)
        begin += tl.sum(found + 1, axis=0)
        # One above K stays so, to be flagged.
        placed = tl.where(found < 0, -1, tl.load(counts + requests, mask=inside, other=-1))
        tl.store(placed_counts + requests, tl.where((total == num_rows) | (found < 0), placed, UNPLACED), mask=inside)


def place_rows(num_target_rows: int, draft: Draft) -> tuple[Tensor | None, Tensor]:
    """Where the rows of each request begin.

    Args:
        num_target_rows: N.
        draft: the proposals.

    Returns:
        ([R] int64 first row of each request, or None when each has K + 1 rows of its own; [R] int64 number of draft
        tokens, UNPLACED of every request where N is not the sum of K_r + 1).
    """
    num_requests, width = draft.token_ids.shape
    counts = draft.num_draft_tokens
    if num_target_rows == num_requests * (width + 1):
        return None, counts
    first_rows, placed_counts = torch.empty_like(counts), torch.empty_like(counts)
    _place_rows_kernel[(1,)](
        counts=counts,
        first_rows=first_rows,
        placed_counts=placed_counts,
        num_requests=num_requests,
        num_rows=num_target_rows,
        width=width,
        REQUESTS=min(REQUESTS_AT_A_TIME, triton.next_power_of_2(num_requests)),
        num_warps=4 if num_requests > 128 else 1,
    )
    return first_rows, placed_counts
