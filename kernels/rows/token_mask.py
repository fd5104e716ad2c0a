"""Grammar bit masks inside the kernels: a forbidden token's logit is -inf from the moment it is loaded.

A mask has one bit a token, in words of 32. The tokens that a thread loads at a time lie in one word, which is loaded
once for all of them. Of a free row no word is loaded. Where a launch has no mask, nothing of this is compiled.
The reference twin is kernels.reference.token_mask.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from ..checks import check_mask
from ..contract import TokenMask
from ..launch.kernel_args import MaskRows
from .addresses import row_number

BITS_PER_WORD = 32
GROUP_BITS: tl.constexpr = tl.constexpr(128)
"""Of logits that one thread loads at a time."""


def mask_rows(
    mask: TokenMask | None, name: str, shape: tuple[int, ...], vocab_size: int, target_ids: Tensor | None = None
) -> MaskRows:
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
        return MaskRows()
    num_words = 0 if target_ids is not None else triton.cdiv(vocab_size, BITS_PER_WORD)
    check_mask(mask, name, shape, num_words)
    return MaskRows(
        words=mask.words,
        stride=mask.words.stride(0),
        num_words=mask.words.shape[1],
        rows=mask.rows,
        row_stride=mask.rows.stride(0),
        position_stride=mask.rows.stride(1) if mask.rows.dim() > 1 else None,
        token_ids=target_ids,
    )


@triton.jit
def mask_row(rows, place, wanted):
    """Number of a row's words, int64; -1 for a free row, or one that is not looked at.

    Args:
        rows: see kernels.launch.kernel_args.MaskRows; None where no row of the launch has a mask.
        place: of the row's entry in `rows`, int64.
        wanted: whether the row is looked at; if not, nothing is loaded.
    """
    if rows is None:
        # A function of Triton 3.6 cannot return None.
        return tl.full((), -1, tl.int64)
    else:
        return tl.load(rows + place, mask=wanted, other=-1).to(tl.int64)


@triton.jit
def target_mask_row(target, tokens, request, index, wanted):
    """`mask_row` of the target row after `index` draft tokens."""
    if target.mask_rows is None:
        return tl.full((), -1, tl.int64)
    else:
        place = row_number(target, tokens, request, index) * target.mask_row_stride
        return mask_row(target.mask_rows, place, wanted)


@triton.jit
def draft_mask_row(draft, slot, index, wanted):
    """`mask_row` of a cached draft row."""
    if draft.mask_rows is None:
        return tl.full((), -1, tl.int64)
    else:
        place = slot * draft.mask_row_stride + index.to(tl.int64) * draft.mask_position_stride
        return mask_row(draft.mask_rows, place, wanted)


@triton.jit
def allows(mask, tokens, inside):
    """Whether a row's mask allows each of some tokens, each with a load of its own; true where not inside.

    Args:
        mask: (words, stride, number of words, ids of the row's tokens, number of the row's words), the first four from
            kernels.launch.kernel_args.MaskRows.
    """
    words, row, token_ids = mask[0] + tl.maximum(mask[4], 0) * mask[1], mask[4], mask[3]
    looked_at = inside & (row >= 0)
    ids = tokens.to(tl.int64)
    if token_ids is not None:
        ids = tl.load(token_ids + ids, mask=looked_at, other=0)
    # A token without a bit is forbidden.
    found = tl.load(words + (ids >> 5), mask=looked_at & (ids < mask[2] * 32), other=0)
    return (looked_at == 0) | (((found >> (ids & 31).to(tl.int32)) & 1) != 0)


@triton.jit
def allowed_logit(logit, token, known, mask):
    """The logit of one token, -inf if it is forbidden; `mask` as for `allows`."""
    if mask[0] is None:
        return logit
    else:
        return tl.where(allows(mask, token, known), logit, -float("inf"))


@triton.jit
def only_allowed(logits, offsets, vocab_size, mask, GROUP: tl.constexpr):
    """The logits of a tile, -inf where forbidden.

    Args:
        logits: float32.
        offsets: ids of the tokens; GROUP side by side in the last dimension follow one another from a multiple of it.
        mask: as for `allows`.
        GROUP: divides 32.
    """
    if mask[0] is None:
        return logits
    else:
        if mask[3] is None:
            words = mask[0] + tl.maximum(mask[4], 0) * mask[1]
            columns = tl.arange(0, GROUP)[None, :]
            groups = tl.reshape(offsets, (offsets.numel // GROUP, GROUP))
            # Sums of integers, of which all but one are 0, cost nothing.
            firsts = tl.sum(tl.where(columns == 0, groups, 0), axis=1)
            found = tl.load(words + (firsts >> 5), mask=(mask[4] >= 0) & (firsts < vocab_size), other=-1)
            bits = (found >> (firsts & 31))[:, None] >> columns
            allowed = tl.reshape((bits & 1) != 0, offsets.shape)
        else:
            allowed = allows(mask, offsets, offsets < vocab_size)
        return tl.where(allowed, logits, -float("inf"))
