"""What decides how many drafts of a round are verified: five ways that are lossless, and four rules that are not.

The lossless ones are the engine's own objects: the confidence stop of its draft-logit cache, by its rows or by a
confidence head (`confident_drafts`), and the table of batch sizes and the planner, which decide before a step begins
(`engine_steps`). The wrong rules depend on the drafted token itself or on later rows; public engines and papers have
used them.

Shapes: R requests of a batch, K draft tokens of each at most, V the vocabulary.
"""

from __future__ import annotations

from enum import Enum

import torch
from torch import Tensor

from kernels.depth import confidence, num_confident

MIN_CONFIDENCE = 0.7
"""Below it are one in three draft rows of the pair of models for controls."""
SLOTS_OF_STEP = 4
"""Slots s with equal s // SLOTS_OF_STEP are those of one engine, whose rounds share a step: few, so that a rule
which looks at its own step sees much of each request."""
SHARED_BUDGET = 5
"""Drafts that a step of the wrong rule admits, of SLOTS_OF_STEP requests with up to 3 each."""


class DepthRule(Enum):
    """What decides how many drafts of a round are verified."""

    row = "depth by the row's confidence"
    head = "depth by a confidence head"
    survival = "depth by the product of a confidence head"
    batch = "depth by a table of batch sizes"
    planner = "depth by the planner"
    own = "cut by the drafted token's own probability"
    own_head = "cut by a confidence head that reads the drafted token"
    next_row = "cut by the next row's confidence"
    shared_budget = "cut by a budget that the requests of a step share"

    @property
    def is_lossless(self) -> bool:
        """Whether it depends neither on a draft token that it leaves out nor on the rows after it."""
        return self.is_of_drafts or self.is_of_step

    @property
    def is_of_drafts(self) -> bool:
        """Whether the engine's draft-logit cache decides while it drafts."""
        return self in (DepthRule.row, DepthRule.head, DepthRule.survival)

    @property
    def is_of_step(self) -> bool:
        """Whether an engine decides before its step begins."""
        return self in (DepthRule.batch, DepthRule.planner)

    def num_drafts(
        self,
        # [R, K, V]
        logits: Tensor,
        # [R, K] int64
        token_ids: Tensor,
        # [R] int64
        slots: Tensor,
    ) -> Tensor:
        """[R] int64, drafts of each request that a wrong rule keeps.

        Args:
            logits: raw draft rows, over the target's vocabulary.
            token_ids: drawn from these rows.
            slots: of the requests.
        """
        assert not self.is_lossless, "the engine's objects decide"
        if self is DepthRule.next_row:
            confidences = confidence(logits)
            behind = torch.cat([confidences[:, 1:], torch.ones_like(confidences[:, :1])], dim=1)
            return num_confident(behind, MIN_CONFIDENCE)
        if self is DepthRule.own_head:
            return num_confident(of_tokens(logits.shape[-1]).to(logits.device)[token_ids], MIN_CONFIDENCE)
        drawn = logits.float().softmax(dim=-1).gather(2, token_ids[..., None])[..., 0]
        if self is DepthRule.own:
            return num_confident(drawn, MIN_CONFIDENCE)
        return num_admitted(drawn, slots)


def of_tokens(num_tokens: int) -> Tensor:
    """[num_tokens] float32 what the toy confidence head predicts behind each token, .4 to .95 in turn."""
    return torch.linspace(0.4, 0.95, num_tokens)


def num_admitted(drawn: Tensor, slots: Tensor) -> Tensor:
    """[R] int64, drafts of each request among the SHARED_BUDGET most probable paths of its step's requests.

    Args:
        drawn: [R, K] float32, draft probability of each draft token.
        slots: [R] int64, of the requests, each once.
    """
    width = drawn.shape[1]
    num_steps = int(slots.max()) // SLOTS_OF_STEP + 1
    paths = drawn.new_full((num_steps * SLOTS_OF_STEP, width), -1.0)
    paths[slots] = drawn.cumprod(dim=1)
    # among equals the first of a request wins, so that what is admitted of it is a beginning
    order = paths.view(num_steps, -1).argsort(dim=1, descending=True, stable=True)[:, :SHARED_BUDGET]
    admitted = torch.zeros(num_steps, SLOTS_OF_STEP * width, dtype=torch.long, device=drawn.device)
    return admitted.scatter_(1, order, 1).view(-1, width)[slots].sum(dim=1)
