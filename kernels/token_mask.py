"""Grammar bit masks inside the kernels: a forbidden token's logit is -inf from the moment it is loaded.

A mask has one bit a token, in words of 32. The tokens that a thread loads at a time lie in one word, which is loaded
once for all of them. Of a free row no word is loaded. Where a launch has no mask (None), nothing of this is compiled.
The reference twin is kernels.reference.token_mask.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from kernels.addresses import row_number
from kernels.arguments import MaskRows
from kernels.checks import check_mask
from kernels.contract import TokenMask

BITS_PER_WORD = 32
GROUP_BITS: tl.constexpr = tl.constexpr(128)
"""Of logits that one thread loads at a time."""


def mask_rows(
    mask: TokenMask | None, name: str, shape: tuple[int, ...], vocab_size: int, target_ids: Tensor | None = None
) -> MaskRows | None:
    """A mask as the kernels see it.

    Args:
        mask: of the rows.
        name: what the caller calls it, for complaints.
        shape: of `rows`, at least; a single dimension must fit.
        vocab_size: of the rows.
        target_ids: [vocab_size] int64, id of each token in the mask's vocabulary; None when it is the same.

    Raises:
        ValueError: its shape, type or layout does not fit.
    """
    if mask is None:
        return None
    num_words = 0 if target_ids is not None else triton.cdiv(vocab_size, BITS_PER_WORD)
    check_mask(mask, name, shape, num_words)
    return MaskRows(
        words=mask.words,
        stride=mask.words.stride(0),
        num_words=mask.words.shape[1],
        rows=mask.rows,
        row_strides=mask.rows.stride(),
        target_ids=target_ids,
    )


@triton.jit
def open_mask(mask, place, wanted):
    """What the functions below need to know of one row.

    Args:
        mask: kernels.arguments.MaskRows; None where no row of the launch has a mask.
        place: of the row's entry in `rows`, int64.
        wanted: whether the row is looked at; if not, nothing is loaded and it counts as free.

    Returns:
        (address of its words, whether it has a mask, ids of its tokens in the mask's vocabulary, number of words), None
        where the launch has no mask.
    """
    if mask is None:
        return None
    else:
        row = tl.load(mask.rows + place, mask=wanted, other=-1).to(tl.int64)
        return mask.words + tl.maximum(row, 0) * mask.stride, row >= 0, mask.target_ids, mask.num_words


@triton.jit
def target_mask(target, tokens, request, index, wanted):
    """`open_mask` of the target row after `index` draft tokens."""
    if target.mask is None:
        return None
    else:
        place = row_number(target, tokens, request, index) * target.mask.row_strides[0]
        return open_mask(target.mask, place, wanted)


@triton.jit
def draft_mask(draft, slot, index, wanted):
    """`open_mask` of a cached draft row."""
    if draft.mask is None:
        return None
    else:
        place = slot * draft.mask.row_strides[0] + index.to(tl.int64) * draft.mask.row_strides[1]
        return open_mask(draft.mask, place, wanted)


@triton.jit
def allows(opened, tokens, inside):
    """Whether an opened mask allows each of some tokens, each with a load of its own; true where not inside."""
    words, is_masked, target_ids, num_words = opened
    looked_at = inside & is_masked
    ids = tokens.to(tl.int64)
    if target_ids is not None:
        ids = tl.load(target_ids + ids, mask=looked_at, other=0)
    # A token without a bit is forbidden.
    found = tl.load(words + (ids >> 5), mask=looked_at & (ids < num_words * 32), other=0)
    return (looked_at == 0) | (((found >> (ids & 31).to(tl.int32)) & 1) != 0)


@triton.jit
def allowed_logit(logit, token, known, opened):
    """The logit of one token, -inf if it is forbidden."""
    if opened is None:
        return logit
    else:
        return tl.where(allows(opened, token, known), logit, -float("inf"))


@triton.jit
def only_allowed(logits, offsets, vocab_size, opened, GROUP: tl.constexpr):
    """The logits of a tile, -inf where forbidden.

    Args:
        logits: float32.
        offsets: ids of the tokens; GROUP side by side in the last dimension follow one another from a multiple of it.
        opened: from `open_mask`.
        GROUP: divides 32.
    """
    if opened is None:
        return logits
    else:
        words, is_masked, target_ids, _ = opened
        if target_ids is None:
            columns = tl.arange(0, GROUP)[None, :]
            groups = tl.reshape(offsets, (offsets.numel // GROUP, GROUP))
            # Sums of integers, of which all but one are 0, cost nothing.
            firsts = tl.sum(tl.where(columns == 0, groups, 0), axis=1)
            found = tl.load(words + (firsts >> 5), mask=is_masked & (firsts < vocab_size), other=-1)
            bits = (found >> (firsts & 31))[:, None] >> columns
            allowed = tl.reshape((bits & 1) != 0, offsets.shape)
        else:
            allowed = allows(opened, offsets, offsets < vocab_size)
        return tl.where(allowed, logits, -float("inf"))
