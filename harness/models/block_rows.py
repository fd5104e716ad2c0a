"""The draft rows of blocks of places, one place after the other.

Shapes: B rows of a batch, K draft tokens, V_draft the tokens that are drafted.
"""

from __future__ import annotations

from torch import Tensor


class BlockRows:
    """The draft rows of blocks, one place after the other; these depend on no draft token."""

    def __init__(self, logits: Tensor) -> None:
        """logits: [B, K, V_draft]."""
        self._logits = logits

    def row(self, step: int, previous: Tensor, out: Tensor | None) -> Tensor:
        """[B, V_draft] logits of one draft token.

        Args:
            step: 0 for the first; each is asked for once, in order.
            previous: [B] int64, the token before it: the last known one, or the draft token of the step before.
            out: [B, V_draft] of their type, to which they may be written; None for new memory.
        """
        return self._logits[:, step]
