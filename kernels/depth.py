"""How many of a round's drafts are verified, decided by draft rows alone.

A round may end in front of a draft token because of the row that the token is drawn from: that depends on the tokens
before it alone, so lossless methods stay lossless. A decision that depends on the token itself, on later rows, or on a
budget that the most probable tokens get is biased: those that remain do not follow their row, which the residual
assumes.
Certification has cases of the first kind and controls of the others (harness/checks/certification/depth_rules.py).
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from .contract import Draft


def confidence(logits: Tensor) -> Tensor:
    """The largest probability of rows at temperature 1, before any cut.

    Args:
        logits: [..., V] raw draft logits.

    Returns:
        [...] float32, 1 / V to 1; NaN where a row has no distribution.
    """
    rows = logits.float()
    return torch.exp(rows.amax(dim=-1) - rows.logsumexp(dim=-1))


def num_confident(confidences: Tensor, min_confidence: float) -> Tensor:
    """Drafts in front of the first row whose confidence is below `min_confidence` or NaN.

    Args:
        confidences: [R, K] of the rows, in order of position.
        min_confidence: 0 to 1.

    Returns:
        [R] int64, 0..K.
    """
    return (confidences >= min_confidence).long().cumprod(dim=1).sum(dim=1)


def without_idle_columns(draft: Draft) -> Draft:
    """The draft without the trailing columns that no request drafts, so that the target does not read them.

    The first column stays. Trees are returned as they are. Reads the counts on the host, which would stall a GPU.
    """
    if draft.parents is not None or draft.token_ids.shape[1] <= 1:
        return draft
    return replace(draft, token_ids=draft.token_ids[:, : max(1, int(draft.num_draft_tokens.max()))])
