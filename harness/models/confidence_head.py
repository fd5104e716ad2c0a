"""How likely draft tokens are accepted, as the confidence head of a DSpark head predicts it (harness.models.dspark).

    c_i = sigmoid(proj [h_i, W1[x_{n-1+i}]])       of the i-th draft token, i = 0 .. K - 1

h_i is the place's state after the final norm, W1 the Markov head's table; a head may read h_i alone. c_i predicts that
the draft token is accepted if those before it are; the product up to it, that all of them are. Both follow from the
context and the tokens before the draft token, so drafts may end in front of it by either (kernels.depth).

Shapes: B rows of a batch, K draft tokens, H hidden size, r rank.
Source: Cheng et al., DSpark (2026), arXiv 2607.05147, and its code, deepseek-ai/DeepSpec.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import linear


class ConfidenceHead(nn.Module):
    """The projection of a place; its tensors have the names of the original code."""

    def __init__(self, num_inputs: int) -> None:
        super().__init__()
        self.proj = nn.Linear(num_inputs, 1)

    def forward(
        self,
        # [B, H or H + r]
        inputs: Tensor,
    ) -> Tensor:
        """[B] float32, 0 to 1."""
        return linear(inputs.float(), self.proj.weight.float(), self.proj.bias.float()).squeeze(-1).sigmoid()


class PredictedConfidence:
    """The predictions for blocks, one place after the other."""

    def __init__(self, hidden: Tensor, head: ConfidenceHead, table: Tensor | None, *, multiplies: bool) -> None:
        """
        Args:
            hidden: [B, K, H] of the places that draft.
            head: predicts.
            table: [V, r] embeddings of the token before; None of a head that reads states alone.
            multiplies: give the product of the predictions up to a place.
        """
        self._hidden, self._head, self._table, self._multiplies = hidden, head, table, multiplies
        self._product: Tensor | None = None

    def at(self, step: int, previous: Tensor) -> Tensor:
        """[B] float32 of one draft token.

        Args:
            step: 0 for the first; each is asked for once, in order.
            previous: [B] int64, the token before it: the last known one, or the draft token of the step before.
        """
        state = self._hidden[:, step]
        found: Tensor = self._head(state if self._table is None else torch.cat((state, self._table[previous]), dim=-1))
        if self._multiplies:
            found = found if self._product is None else self._product * found
            self._product = found
        return found
