"""A drafter's distributions over the target's vocabulary: tokens that the drafter does not know have probability 0."""

from __future__ import annotations

from torch import Tensor


def on_target_vocab(draft_probs: Tensor, draft_to_target: Tensor | None, vocab_size: int) -> Tensor:
    """Lay rows over the target's vocabulary.

    Args:
        draft_probs: [n, V_draft].
        draft_to_target: [V_draft] int64, target id of each draft id; None when the ids are the same.
        vocab_size: V, of the target.

    Returns:
        [n, V] of the same dtype.
    """
    spread = draft_probs.new_zeros(len(draft_probs), vocab_size)
    columns = slice(0, draft_probs.shape[1]) if draft_to_target is None else draft_to_target
    spread[:, columns] = draft_probs
    return spread
