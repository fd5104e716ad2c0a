"""Grammar bit masks: a forbidden token is as if its logit were -inf, before temperature and truncation.

Shapes: N rows of logits, V entries of the vocabulary at hand (the target's or the drafter's), M bit masks.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ..contract import Draft, TokenMask

BITS_PER_WORD = 32


def allowed_tokens(words: Tensor, token_ids: Tensor) -> Tensor:
    """Whether each of the masks allows each of the tokens.

    Args:
        words: [n, >= ceil(V / 32)] int32.
        token_ids: [V] int64, in the target's vocabulary.

    Returns:
        [n, V] bool.
    """
    # A shift of a negative number fills up with ones on the left, which the bit is free of.
    return ((words[:, token_ids // BITS_PER_WORD] >> (token_ids % BITS_PER_WORD)) & 1).bool()


def words_of(token_ids: Tensor, vocab_size: int) -> Tensor:
    """The mask that allows just these tokens: [ceil(V / 32)] int32 on the host."""
    words = torch.zeros(-(-vocab_size // BITS_PER_WORD), dtype=torch.int64)
    token_ids = token_ids.cpu().unique()
    words.index_add_(0, token_ids // BITS_PER_WORD, 1 << (token_ids % BITS_PER_WORD))
    return words.to(torch.int32)


def check_mask(mask: TokenMask, logits: Tensor, target_ids: Tensor) -> None:
    """Raises ValueError unless there is a mask, or -1, for each row and a bit for each token."""
    if mask.words.dim() != 2 or mask.words.dtype != torch.int32:
        raise ValueError(
            f"mask.words must be [M, words] int32, found {list(mask.words.shape)} {mask.words.dtype}; "
            "bit v % 32 of word v // 32 belongs to token v"
        )
    if mask.rows.shape != logits.shape[:1] or mask.rows.dtype != torch.int64:
        raise ValueError(
            f"mask.rows must be one int64 per row, [{len(logits)}]; found {list(mask.rows.shape)} {mask.rows.dtype}"
        )
    num_masks, num_words = mask.words.shape
    if len(mask.rows) and not -1 <= int(mask.rows.min()) <= int(mask.rows.max()) < num_masks:
        raise ValueError(
            f"mask.rows must lie in 0..{num_masks - 1}, the masks of mask.words, or be -1 for a free row; found "
            f"{mask.rows.unique().tolist()}"
        )
    num_needed = int(target_ids.max()) // BITS_PER_WORD + 1
    if num_words < num_needed:
        raise ValueError(f"mask.words must have {num_needed} words, a bit for every token; found {num_words}")


def without_forbidden(logits: Tensor, mask: TokenMask, draft_to_target: Tensor | None = None) -> Tensor:
    """The logits with -inf in the place of forbidden tokens; those given are left as they are.

    Args:
        logits: [N, V], any floating dtype.
        mask: `rows` [N].
        draft_to_target: [V] int64, id of each token in the mask's vocabulary; None when it is the same.

    Returns:
        [N, V] of the same dtype.

    Raises:
        ValueError: the mask does not fit the rows.
    """
    target_ids = torch.arange(logits.shape[1], device=logits.device) if draft_to_target is None else draft_to_target
    check_mask(mask, logits, target_ids)
    masked = (mask.rows >= 0).nonzero()[:, 0]
    if len(masked) == 0:
        return logits
    left = logits.clone()
    left[masked] = logits[masked].masked_fill(~allowed_tokens(mask.words[mask.rows[masked]], target_ids), -torch.inf)
    return left


def allowed_draft_logits(logits: Tensor, draft: Draft, slots: Tensor, positions: Tensor | int) -> Tensor:
    """Draft logits under the masks that their drafts were drawn under.

    Args:
        logits: [N, V_draft].
        draft: whose masks they are.
        slots: [N] int64, of the cache.
        positions: [N] int64, of the draft tokens, or one for all.

    Returns:
        [N, V_draft] of the same dtype.
    """
    if draft.mask is None:
        return logits
    return without_forbidden(logits, replace(draft.mask, rows=draft.mask.rows[slots, positions]), draft.draft_to_target)
