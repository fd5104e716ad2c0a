"""Draft rows over a few candidates, scored by the token before: the selector of DFlash2 heads (harness.models.dflash2).

Shapes: B rows of a batch, K draft tokens, H hidden size, r rank, C candidates, V_draft the tokens that are drafted.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from harness.models.block_rows import BlockRows


class CandidateSelector(nn.Module):
    """Scores of candidates by the token before them; its tensors have the names of the package dflash."""

    def __init__(self, top_k: int, rank: int, hidden_size: int, vocab_size: int, draft_vocab_size: int) -> None:
        """top_k: candidates of a place. vocab_size: of the target. draft_vocab_size: V_draft."""
        super().__init__()
        self.top_k, self.rank = top_k, rank
        self.predecessor_codebook = nn.Parameter(torch.empty(vocab_size, rank))
        self.successor_codebook = nn.Parameter(torch.empty(draft_vocab_size, rank))
        self.hidden_projection = nn.Linear(hidden_size, rank, bias=False)


class SelectorRows(BlockRows):
    """The rows of blocks: of each place the scores of a few candidates, -inf elsewhere."""

    def __init__(self, logits: Tensor, hidden: Tensor, selector: CandidateSelector) -> None:
        """logits: [B, K, V_draft]. hidden: [B, K, H]."""
        super().__init__(logits)
        self._scores, self._candidates = logits.topk(min(selector.top_k, logits.shape[-1]), dim=-1, sorted=False)
        self._projected = selector.hidden_projection(hidden)
        self._successors = selector.successor_codebook[self._candidates]
        """[B, K, C, r]."""
        self._predecessors = selector.predecessor_codebook

    def row(self, step: int, previous: Tensor, out: Tensor | None) -> Tensor:
        context = self._predecessors[previous] * self._projected[:, step]
        scores = self._scores[:, step] + (self._successors[:, step] @ context.unsqueeze(-1)).squeeze(-1)
        row = torch.empty_like(super().row(step, previous, None)) if out is None else out
        return row.fill_(float("-inf")).scatter_(1, self._candidates[:, step], scores)
