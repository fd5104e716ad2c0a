"""How many of a round's drafts are verified, decided by draft rows alone.

Leaving out a draft token because of the row that it is drawn from is lossless under every method: the decision is a
function of the tokens before it. Leaving it out because of itself, of rows behind it, or of a budget that looks at
them, is not: the tokens that stay then follow another law than the row, and the residual belongs to the row.
Certification has cases of the first kind and controls of the others (harness/certification/depth_rules.py).
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


def num_confident(confidences: Tensor, least: float) -> Tensor:
    """Drafts in front of the first row that is less confident than `least`, or NaN.

    Args:
        confidences: [R, K] of the rows, in their order.
        least: the smallest confidence that is drafted from.

    Returns:
        [R] int64, 0..K.
    """
    return (confidences >= least).long().cumprod(dim=1).sum(dim=1)


def without_idle_columns(draft: Draft) -> Draft:
    """A chain's draft without the columns, but for the first, that no request drafts: the target need not read them.

    Waits for the counts, so that it is for a CPU.
    """
    if draft.parents is not None or draft.token_ids.shape[1] <= 1:
        return draft
    return replace(draft, token_ids=draft.token_ids[:, : max(1, int(draft.num_draft_tokens.max()))])
