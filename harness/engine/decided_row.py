"""What a step tells the host of a request, as one row of numbers: written on the device, read on the host.

Shapes: B rows, T = K + 1 tokens of a round at most.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

NUM_COUNTS = 3
"""Accepted tokens, draft tokens (-1: nothing was decided), and the flag of a row without a distribution."""


class RowLayout(NamedTuple):
    """Where a row of StepOutput.decided has what. Slices of it, not functions: the host reads some for every request of
    every round.

    T emitted tokens; K draft tokens; of trees the K nodes of the accepted path, -1 beyond it, and the K depths of the
    draft tokens; the counts; log-probabilities, if any (packed_logprobs).
    """

    width: int
    """T, and the place of the first draft token."""
    tokens: slice
    """The accepted tokens, the one behind them and what means nothing, T together; K draft tokens behind them."""
    counts: slice
    """Number of accepted tokens and of draft tokens, and the flag, as NUM_COUNTS has them; more than K draft tokens
    tell of rows without a distribution, which the flag says. Log-probabilities begin behind it."""
    path: slice
    """Places of the nodes of a tree's accepted path; none of a chain."""
    depths: slice
    """Places of the depths of a tree's draft tokens; none of a chain."""
    of_trees: bool

    @classmethod
    def of(cls, num_speculative_tokens: int, of_trees: bool = False) -> RowLayout:
        """K of the step; whether drafts are trees."""
        width, length = num_speculative_tokens + 1, num_speculative_tokens if of_trees else 0
        drafts_end = width + num_speculative_tokens
        path, depths = slice(drafts_end, drafts_end + length), slice(drafts_end + length, drafts_end + 2 * length)
        counts = slice(depths.stop, depths.stop + NUM_COUNTS)
        return cls(width, slice(drafts_end), counts, path, depths, of_trees)

    def draft_ids(self, row: list[int]) -> list[int]:
        """The draft tokens; of a tree with NO_TOKEN where a place holds none."""
        num_drafted = min(max(row[self.counts][1], 0), self.width - 1)
        return row[self.width : self.width + num_drafted]

    def path_of(self, row: list[int], num_accepted: int) -> list[int]:
        """Of a tree, the places of the accepted tokens."""
        return row[self.path][:num_accepted]

    def logprobs(self, row: list[int], num_tokens: int) -> list[int]:
        """Those of so many emitted tokens (packed_logprobs); empty where the step computed none."""
        end = self.counts.stop
        return row[end : end + (len(row) - end) // self.width * num_tokens]


def joined(committed: Tensor, of_trees: tuple[Tensor, ...] = (), logprobs: Tensor | None = None) -> Tensor:
    """Rows as RowLayout has them.

    Args:
        committed: [B, T + K + 3] int64, what Core.commit packed: tokens, draft tokens, counts.
        of_trees: path and depths, [B, K] int64 each; empty for chains.
        logprobs: [B, ...] int64.
    """
    if not of_trees and logprobs is None:
        return committed
    tokens, counts = committed.tensor_split((committed.shape[1] - NUM_COUNTS,), dim=1)
    return torch.cat([tokens, *of_trees, counts, *(() if logprobs is None else (logprobs,))], dim=1)
