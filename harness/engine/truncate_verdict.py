"""The end of a round cut off before the drafter and the slots take it in."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from harness.engine.step import Verified


def truncate_verdict(
    verified: Verified,
    # [B] int64
    num_kept: Tensor,
) -> Verified:
    """Leave the first tokens of each row, at least 1, of a row that has any.

    The last one takes the place of a recovered token, accepted draft token though it may be: the target has read
    everything in front of it, and it is the first that the next round reads. Counting is not this function's work.
    """
    verdict = verified.verdict
    columns = torch.arange(verdict.token_ids.shape[1], device=num_kept.device)
    token_ids = verdict.token_ids.masked_fill(columns >= num_kept.unsqueeze(1), -1)
    num_accepted = torch.minimum(verdict.num_accepted, num_kept - 1)
    return verified._replace(verdict=replace(verdict, token_ids=token_ids, num_accepted=num_accepted))
