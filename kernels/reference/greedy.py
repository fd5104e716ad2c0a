"""Greedy verification, lossless: the limit of every lossless rule at temperature 0.

    accept X_i iff X_i = argmax p_i, the lowest id among equals; else emit argmax p_i.

No random numbers and no exponentials, so a batch whose rows are all greedy takes this way under every method.
"""

from __future__ import annotations

from torch.nn import functional

from ..contract import Draft, VerificationResult
from .proposal import Compared, leading
from .verdict import assemble


def verify_greedy(compared: Compared, draft: Draft) -> VerificationResult:
    """Verify requests that are all at temperature 0.

    Args:
        compared: the processed target rows.
        draft: the proposals, no padded slots among them; their logits are not read.

    Returns:
        VerificationResult, fields [R].
    """
    rows, target, _ = compared
    invalid, token_ids = target.invalid, target.certain[rows]
    width = draft.token_ids.shape[1]
    agrees = (draft.token_ids == token_ids[:, :width]) & ~invalid[rows[:, :width]]
    num_accepted = (agrees & leading(draft.num_draft_tokens, width)).long().cumprod(dim=1).sum(dim=1)
    last = num_accepted[:, None]
    # With a column after the last draft token, for requests whose drafts all agree.
    outside = (draft.token_ids < -1) | (draft.token_ids >= target.logits.shape[1])
    outside = functional.pad(outside & leading(draft.num_draft_tokens, width), (0, 1))
    flagged = invalid[rows.gather(1, last)[:, 0]] | outside.gather(1, last)[:, 0]
    return assemble(draft.token_ids, num_accepted, token_ids.gather(1, last)[:, 0], flagged, compared)
