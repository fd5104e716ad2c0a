"""Put a round's output tokens together."""

from __future__ import annotations

import torch
from torch import Tensor

from ..contract import VerificationResult
from .proposal import Compared, leading


def assemble(
    draft_token_ids: Tensor, num_accepted: Tensor, last_token_ids: Tensor, invalid: Tensor, compared: Compared
) -> VerificationResult:
    """The accepted draft tokens, then one more.

    Args:
        draft_token_ids: [R, K] int64.
        num_accepted: [R] int64.
        last_token_ids: [R] int64, the recovered or bonus token.
        invalid: [R] bool.
        compared: what was laid side by side.
    """
    width = draft_token_ids.shape[1] + 1
    token_ids = torch.full((len(num_accepted), width), -1, dtype=torch.long, device=num_accepted.device)
    token_ids[:, :-1] = torch.where(leading(num_accepted, width - 1), draft_token_ids, -1)
    return VerificationResult(
        token_ids.scatter_(1, num_accepted[:, None], last_token_ids[:, None]), num_accepted, invalid, compared
    )


def place(verdict: VerificationResult, present: Tensor, num_slots: int) -> VerificationResult:
    """Spread the verdict of the slots `present` ([R] int64) over `num_slots` slots; the others are padded."""
    width = verdict.token_ids.shape[1]
    return VerificationResult(
        verdict.token_ids.new_full((num_slots, width), -1).index_copy_(0, present, verdict.token_ids),
        verdict.num_accepted.new_zeros(num_slots).index_copy_(0, present, verdict.num_accepted),
        verdict.invalid.new_zeros(num_slots).index_copy_(0, present, verdict.invalid),
        verdict.compared,
        None
        if verdict.path is None
        else verdict.path.new_full((num_slots, width - 1), -1).index_copy_(0, present, verdict.path),
    )
