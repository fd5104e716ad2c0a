"""What a round decided, packed for the host and taken into the slots. The specification of kernels.commit."""

from __future__ import annotations

import torch
from torch import Tensor

from ..contract import Slots, VerificationResult


def commit(verdict: VerificationResult, draft_ids: Tensor, counts: Tensor, slots: Slots | None) -> Tensor:
    """See kernels.commit."""
    if slots is not None:
        num_rows, width = verdict.token_ids.shape
        decides, lengths = counts >= 0, slots.lengths[:num_rows]
        rows, columns = (torch.arange(size, device=counts.device) for size in (num_rows, width))
        num_emitted = (verdict.num_accepted + 1) * decides
        places = (lengths.unsqueeze(1) + columns).clamp_(max=slots.token_ids.shape[1] - 1)
        kept = columns < num_emitted.unsqueeze(1)
        slots.token_ids.index_put_((torch.where(kept, rows.unsqueeze(1), slots.spare), places), verdict.token_ids)
        lengths += num_emitted
        slots.rounds[:num_rows] += decides
    numbers = torch.stack([verdict.num_accepted, counts, verdict.invalid.long()], dim=1)
    return torch.cat([verdict.token_ids, draft_ids, numbers], dim=1)
