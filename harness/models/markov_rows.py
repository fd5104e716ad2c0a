"""Draft rows with a bias by the token before each: the Markov head of DSpark heads (harness.models.dspark).

Shapes: B rows of a batch, K draft tokens, H hidden size, r rank, V_draft the tokens that are drafted.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from harness.models.block_rows import BlockRows


class MarkovHead(nn.Module):
    """The head over a block's places; its tensors have the names of the original code, DeepSpec."""

    def __init__(self, head_type: str, rank: int, hidden_size: int, vocab_size: int, draft_vocab_size: int) -> None:
        """head_type: one of MARKOV_HEADS. vocab_size: of the target. draft_vocab_size: V_draft."""
        super().__init__()
        self.rank, self.head_type = rank, head_type
        self.markov_w1 = nn.Embedding(vocab_size, rank)
        self.markov_w2 = nn.Linear(rank, draft_vocab_size, bias=False)
        if self.head_type == "gated":
            self.gate_proj = nn.Linear(hidden_size + rank, rank)
        if self.head_type == "rnn":
            self.joint_proj = nn.Linear(2 * rank + hidden_size, 3 * rank)

    def latent(
        self,
        # [B] int64
        previous: Tensor,
        # [B, H]
        hidden: Tensor,
        # [B, r]
        state: Tensor | None,
    ) -> tuple[Tensor, Tensor | None]:
        """[B, r] what W2 projects, and the state for the next place; None of heads that keep none."""
        token = self.markov_w1.weight[previous]
        if self.head_type == "gated":
            return self.gate_proj(torch.cat((hidden, token), dim=-1)).sigmoid() * token, None
        if self.head_type == "rnn":
            state = torch.zeros_like(token) if state is None else state
            gate, candidate, output = self.joint_proj(torch.cat((state, token, hidden), dim=-1)).chunk(3, dim=-1)
            gate = gate.sigmoid()
            return output.tanh(), gate * state + (1 - gate) * candidate.tanh()
        return token, None


class MarkovRows(BlockRows):
    """The rows of blocks, each with the bias that follows from the token before it."""

    def __init__(self, logits: Tensor, hidden: Tensor, head: MarkovHead) -> None:
        super().__init__(logits)
        self._hidden, self._head = hidden, head
        self._state: Tensor | None = None

    def row(self, step: int, previous: Tensor, out: Tensor | None) -> Tensor:
        latent, self._state = self._head.latent(previous, self._hidden[:, step], self._state)
        base, projection = super().row(step, previous, None), self._head.markov_w2.weight.t()
        return torch.addmm(base, latent, projection) if out is None else torch.addmm(base, latent, projection, out=out)
