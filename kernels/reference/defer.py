"""How many drafts each row of a round verifies, and which rows are deferred. The specification of kernels.defer."""

from __future__ import annotations

import torch
from torch import Tensor

from ..contract import ANY_TOKEN, Deferred


def defer(
    decides: Tensor,
    num_draft_tokens: Tensor,
    draft_ids: Tensor,
    token_ids: Tensor,
    lengths: Tensor,
    endings: Tensor | None,
) -> Deferred:
    """See kernels.defer."""
    is_round = decides == 1
    counts = torch.where(is_round, num_draft_tokens, decides.clamp(max=1) - 1)
    if endings is None:
        return Deferred(counts, counts < 0)
    num_rows, num_drafts = draft_ids.shape
    device = draft_ids.device
    starts = torch.where(is_round, lengths, 1).unsqueeze(1)
    # the last token and the drafts after it, each as the last of a window
    columns = torch.arange(num_drafts + 1, device=device)
    is_whole = torch.ones(num_rows, num_drafts + 1, dtype=torch.bool, device=device)
    num_marks = endings.shape[1]
    for back in range(num_marks):
        wanted = endings[:num_rows, num_marks - 1 - back].unsqueeze(1)
        places = starts - 1 + columns - back
        told = token_ids[:num_rows].gather(1, places.clamp(0, token_ids.shape[1] - 1))
        if num_drafts:
            drafted = draft_ids.gather(1, (places - starts).clamp(0, num_drafts - 1))
            told = torch.where(places < starts, told, drafted)
        is_whole &= (wanted == ANY_TOKEN) | ((told == wanted) & (places >= 0))
    is_deferred = is_round & (is_whole & (columns <= num_draft_tokens.unsqueeze(1))).any(dim=1)
    counts = torch.where(is_deferred, -1, counts)
    return Deferred(counts, counts < 0)
