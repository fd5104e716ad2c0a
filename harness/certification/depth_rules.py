"""Rules that decide how many drafts of a round are verified: three that are lossless, and three that are not.

A rule that depends on each draft row alone is lossless (kernels.depth), and so is one that depends on the batch and the
rounds before. The others depend on the drafted token itself or on later rows; public engines and papers have used them.
"""

from __future__ import annotations

from enum import Enum

import torch
from torch import Tensor

from kernels.depth import confidence, num_confident

MIN_CONFIDENCE = 0.7
"""Below it are one in three draft rows of the pair of models for controls."""


class DepthRule(Enum):
    """What decides how many drafts of a round are verified."""

    row = "depth by the row's confidence"
    batch = "depth by the batch at the start of the step"
    rounds = "depth by what the rounds before accepted"
    own = "cut by the drafted token's own probability"
    next_row = "cut by the next row's confidence"
    step_budget = "cut by a budget of the current step"

    @property
    def is_lossless(self) -> bool:
        """Whether it depends neither on a draft token that it leaves out nor on the rows after it."""
        return self in (DepthRule.row, DepthRule.batch, DepthRule.rounds)

    def num_drafts(
        self,
        # [R, K, V]
        logits: Tensor,
        # [R, K] int64
        token_ids: Tensor,
        # [R] int64
        starts: Tensor,
        # [] int64
        num_accepted_before: Tensor,
        num_rounds_before: int,
    ) -> Tensor:
        """[R] int64, drafts of each request that the rule keeps.

        Args:
            logits: raw draft rows, over the target's vocabulary.
            token_ids: drawn from these rows.
            starts: the models' states before the round, 0 where a request begins.
            num_accepted_before: drafts that the rounds before accepted, of all requests.
            num_rounds_before: rounds of the batch before this one.
        """
        num_requests, width = token_ids.shape
        if self is DepthRule.batch:
            # requests that begin stand for those in flight, whose number changes less often
            return ((starts == 0).sum() % (width + 1)).expand(num_requests)
        if self is DepthRule.rounds:
            # rounds without drafts accept none, and must not stay so
            return ((num_accepted_before + num_rounds_before) % (width + 1)).expand(num_requests)
        confidences = confidence(logits)
        if self is DepthRule.own:
            drawn = logits.float().softmax(dim=-1).gather(2, token_ids[..., None])[..., 0]
            return num_confident(drawn, MIN_CONFIDENCE)
        if self is DepthRule.next_row:
            behind = torch.cat([confidences[:, 1:], torch.ones_like(confidences[:, :1])], dim=1)
            return num_confident(behind, MIN_CONFIDENCE)
        if self is DepthRule.step_budget:
            # the expected number of accepted drafts, if confidence were the chance of acceptance
            return confidences.cumprod(dim=1).sum(dim=1).round().long()
        return num_confident(confidences, MIN_CONFIDENCE)
