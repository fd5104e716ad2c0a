"""Whether a subject's `verify` left its inputs as they were: engines read them again, and the next round its cache."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.contract import Draft


def copied_inputs(target_logits: Tensor, draft: Draft) -> list[Tensor]:
    """Copies of what `verify` gets of a round: the target's rows, the drafts, their cache and its mapping."""
    return [item.clone() for item in _inputs(target_logits, draft)]


def num_overwritten(copies: Sequence[Tensor], target_logits: Tensor, draft: Draft) -> int:
    """How many of the inputs differ in some bit from their copies, which `copied_inputs` made before the call."""
    pairs = zip(copies, _inputs(target_logits, draft), strict=True)
    # as bytes, because NaN is no number that equals itself
    return sum(not torch.equal(copy.view(torch.uint8), now.view(torch.uint8)) for copy, now in pairs)


def _inputs(target_logits: Tensor, draft: Draft) -> list[Tensor]:
    given = (target_logits, draft.token_ids, draft.num_draft_tokens, draft.logits, draft.idx_mapping)
    return [item for item in given if item is not None]
