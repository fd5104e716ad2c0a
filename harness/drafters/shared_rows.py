"""A draft model of another tokenizer in a round: target tokens in, rows over shared tokens out, and their mass.

A row over shared tokens is the model's row with the others at minus infinity: its softmax, at any temperature and cut,
is the model's law restricted to shared tokens. Drafts are drawn from it and verified by it.

Shapes: B rows, S shared tokens, V_draft the model's own vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from harness.models.shared_tokens import SharedTokens


class SharedRows:
    """The tokens that a draft model shares with its target, on a device."""

    def __init__(self, tokens: SharedTokens, device: torch.device) -> None:
        self.target_ids, self._draft_ids, self._read_as = (
            torch.tensor(ids, device=device) for ids in (tokens.target_ids, tokens.draft_ids, tokens.read_as)
        )
        self.mass = torch.zeros(2, dtype=torch.float64, device=device)
        """[2] sum over draft rows of the probability that the model gives shared tokens, and number of these rows."""

    def read(self, token_ids: Tensor) -> Tensor:
        """The model's own ids for ids of the target, int64 of any shape."""
        return self._read_as[token_ids]

    def restricted(
        self,
        # [B, ..., V_draft]
        logits: Tensor,
        # [B, ...] bool
        counts: Tensor,
    ) -> Tensor:
        """[B, ..., S] the columns of shared tokens.

        counts: rows whose mass counts; the others idle, or follow no node. It is that of the uncut row at
            temperature 1.
        """
        kept = logits.index_select(-1, self._draft_ids)
        share = (kept.float().logsumexp(-1) - logits.float().logsumexp(-1)).exp()
        self.mass[0] += torch.where(counts, share, 0).sum(dtype=torch.float64)
        self.mass[1] += counts.sum()
        return kept
