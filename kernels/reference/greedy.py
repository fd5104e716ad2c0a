"""Greedy verification, lossless: the limit of every lossless rule at temperature 0.

    accept X_i iff X_i = argmax p_i, the lowest id among equals; else emit argmax p_i.

No random numbers and no exponentials, so a batch whose rows are all greedy takes this way under every method.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from ..contract import Draft, VerificationResult
from .proposal import leading
from .target_rows import target_rows
from .verdict import assemble


def verify_greedy(target_logits: Tensor, draft: Draft) -> VerificationResult:
    """Verify requests that are all at temperature 0.

    Args:
        target_logits: [N, V], any floating dtype, packed or padded (see target_rows).
        draft: the proposals, no padded slots among them; their logits are not read.

    Returns:
        VerificationResult, fields [R].
    """
    rows = target_rows(len(target_logits), draft).rows
    invalid = ~target_logits.amax(dim=1).isfinite()
    token_ids = torch.where(invalid, 0, target_logits.argmax(dim=1))[rows]
    width = draft.token_ids.shape[1]
    agrees = (draft.token_ids == token_ids[:, :width]) & ~invalid[rows[:, :width]]
    num_accepted = (agrees & leading(draft.num_draft_tokens, width)).long().cumprod(dim=1).sum(dim=1)
    last = num_accepted[:, None]
    # With a column after the last draft token, for requests whose drafts all agree.
    outside = (draft.token_ids < 0) | (draft.token_ids >= target_logits.shape[1])
    outside = functional.pad(outside & leading(draft.num_draft_tokens, width), (0, 1))
    flagged = invalid[rows.gather(1, last)[:, 0]] | outside.gather(1, last)[:, 0]
    return assemble(draft.token_ids, num_accepted, token_ids.gather(1, last)[:, 0], flagged)
