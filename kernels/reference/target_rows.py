"""Where each request's rows lie among the target's: packed or padded, and what padded slots leave to be verified.

Shapes: R requests, K the width of the draft's token ids, N target rows, V the target's vocabulary.

    packed   K_r + 1 rows of each request, request after request; a padded slot has none
    padded   exactly R (K + 1) rows; request r's begin at r (K + 1), and those after its K_r + 1 have no meaning

Where both counts are the same, every K_r is K and so are the layouts.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from ..contract import Draft


class TargetRows(NamedTuple):
    """Which target row is whose."""

    rows: Tensor
    """[R, K + 1] int64, the row that follows the first i draft tokens; beyond K_r it repeats row K_r."""
    requests: Tensor
    """[N] int64, the request that each row belongs to."""


def is_padded(num_target_rows: int, draft: Draft) -> bool:
    """Whether the rows lie padded, with K + 1 places per request; raises ValueError when they do not add up."""
    counts, width = draft.num_draft_tokens, draft.token_ids.shape[1]
    if len(counts) and not -1 <= int(counts.min()) <= int(counts.max()) <= width:
        raise ValueError(
            f"num_draft_tokens must lie in 0..{width}, the width of token_ids; found {counts.tolist()}; "
            "-1 marks a padded slot"
        )
    num_padded, num_packed = len(counts) * (width + 1), int(counts.sum()) + len(counts)
    if num_target_rows not in (num_padded, num_packed):
        raise ValueError(
            f"target_logits must hold num_draft_tokens + 1 rows per request, {num_packed} in all; found "
            f"{num_target_rows}; padded to {width + 1} rows per request they would be {num_padded}"
        )
    return num_target_rows == num_padded


def target_rows(num_target_rows: int, draft: Draft) -> TargetRows:
    """The rows of each request and the request of each row.

    Args:
        num_target_rows: N.
        draft: proposals without padded slots; see `present_slots`.

    Raises:
        ValueError: the rows do not add up.
    """
    counts, width = draft.num_draft_tokens, draft.token_ids.shape[1]
    num_rows = torch.full_like(counts, width + 1) if is_padded(num_target_rows, draft) else counts + 1
    first = torch.cumsum(num_rows, dim=0) - num_rows
    offsets = torch.arange(width + 1, device=counts.device)
    requests = torch.repeat_interleave(torch.arange(len(counts), device=counts.device), num_rows)
    return TargetRows(first[:, None] + torch.minimum(offsets, counts[:, None]), requests)


def present_slots(target_logits: Tensor, draft: Draft) -> tuple[Tensor, Draft, Tensor] | None:
    """Leave padded slots out of a batch; None when it has none.

    Args:
        target_logits: [N, V].
        draft: the proposals.

    Returns:
        The target rows and the draft of the slots that hold a request, and their index, [<= R] int64.

    Raises:
        ValueError: the rows do not add up.
    """
    present = (draft.num_draft_tokens >= 0).nonzero()[:, 0]
    num_slots, width = draft.token_ids.shape
    if len(present) == num_slots:
        return None
    if is_padded(len(target_logits), draft):
        target_logits = target_logits.view(num_slots, width + 1, -1)[present].flatten(0, 1)
    left = replace(
        draft,
        token_ids=draft.token_ids[present],
        num_draft_tokens=draft.num_draft_tokens[present],
        idx_mapping=present if draft.idx_mapping is None else draft.idx_mapping[present],
        parents=None if draft.parents is None else draft.parents[present],
        sampling=None if draft.sampling is None else draft.sampling.each(lambda field: field[present]),
    )
    return target_logits, left, present
