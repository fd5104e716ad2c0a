"""Logits of rows that begin anywhere in a word of memory, read in aligned words.

Where the length or the distance of rows is no multiple of 16 tokens, each begins at another place of a word. Read as
they are, they take a load for each token. Two ways spare that, and what comes out of both is the same to the bit:

    lead       the chunks of a row begin at the word of 16 bytes that the row begins in. Every word is read whole, and
               only in the first and the last one tokens beside the row are left out. The tokens of a group no longer
               follow one another from a multiple of its size
    in_words   chunks begin with the row, and a group of tokens, as many as 16 bytes hold, is put together from the
               three words of 8 bytes that it lies in: where masks or noise, which have words of their own, or a second
               row stand beside the tokens

A word may hold tokens of another row, or bytes beside the tensor: they are read, which no memory forbids within an
aligned word, and left out. A row that lies on words of 16 bytes by its sizes is read as it is (`read_in_words`), and
nothing of this is compiled.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from ..launch.workspace import SHORT_CHUNK

GROUP_BYTES: tl.constexpr = tl.constexpr(16)
WORD_BYTES: tl.constexpr = tl.constexpr(8)


def read_in_words(logits: Tensor, *strides: int) -> int | None:
    """Not None where the rows of a tensor must be put together from words; kernels ask no more of the number.

    Args:
        logits: [..., vocabulary].
        strides: distances of its rows, in tokens.
    """
    vocab_size = logits.shape[-1]
    # What Triton can tell by itself: the sizes and addresses that it specializes for.
    lie_on_words = all(size % 16 == 0 for size in (vocab_size, *strides)) and logits.data_ptr() % 16 == 0
    # A row of one short chunk is a load or two for each thread anyway.
    return None if lie_on_words or vocab_size <= SHORT_CHUNK else 16


def in_words_or_lead(in_words: int | None, may_lead: bool) -> tuple[int | None, int | None]:
    """(in_words, lead) of target rows, one of them at most.

    Args:
        in_words: of `read_in_words`.
        may_lead: nothing that has words of its own stands beside the tokens, and draft rows have the target's type.
    """
    return (None, in_words) if may_lead else (in_words, None)


@triton.jit
def _all_bits(condition):
    """-1 where it holds, else 0."""
    return -condition.to(tl.int32)


@triton.jit
def _chosen(mask, one, other):
    """`one` where the bits of the mask are set, `other` elsewhere."""
    return (one & mask) | (other & ~mask)


@triton.jit
def _two_parts(words, places, wanted, nothing):
    """The lower and the upper 32 bits of words of 8 bytes."""
    loaded = tl.load(words + places, mask=wanted, other=nothing)
    return loaded.to(tl.int32), (loaded >> 32).to(tl.int32)


@triton.jit
def _halves(first, second):
    """The upper half of one number, and above it the lower half of the next."""
    return ((first >> 16) & 0xFFFF) | (second << 16)


@triton.jit
def _firsts(places, GROUP: tl.constexpr):
    """[number of groups] the first of each, taken so that the compiler gives a group to a thread."""
    firsts, _ = tl.split(tl.reshape(places, (places.numel // 2, 2)))
    firsts, _ = tl.split(tl.reshape(firsts, (places.numel // 4, 2)))
    if GROUP == 8:
        firsts, _ = tl.split(tl.reshape(firsts, (places.numel // 8, 2)))
    return firsts


@triton.jit
def _nothing(DTYPE: tl.constexpr):
    """-inf in every token of 32 bits."""
    NOTHING: tl.constexpr = (
        -8388608 if DTYPE.primitive_bitwidth == 32 else (-8323200 if tl.bfloat16 == DTYPE else -67044352)
    )
    return tl.full((), NOTHING, tl.int32)


@triton.jit
def _behind(number, num_left, BITS: tl.constexpr):
    """The bits of 32 that lie at or behind token `num_left` of a group, in part `number` of it."""
    TOKENS: tl.constexpr = 32 // BITS
    bits = _all_bits(num_left <= number * TOKENS)
    if BITS == 16:
        bits = bits | (_all_bits(num_left == number * TOKENS + 1) & -65536)
    return bits


@triton.jit
def _unpacked(parts, DTYPE: tl.constexpr):
    """float32 logits of parts of 32 bits, one or two of each."""
    if tl.float32 == DTYPE:
        values = parts.to(tl.float32, bitcast=True)
    elif tl.bfloat16 == DTYPE:
        values = tl.join((parts << 16).to(tl.float32, bitcast=True), (parts & -65536).to(tl.float32, bitcast=True))
    else:
        lower, upper = parts.to(tl.int16), (parts >> 16).to(tl.int16)
        values = tl.join(lower, upper).to(tl.float16, bitcast=True).to(tl.float32)
    return values


@triton.jit
def row_lead(row_logits, lead):
    """int32 number of tokens between the word of 16 bytes that a row begins in and the row; 0 for a row without lead.

    Args:
        row_logits: address of the row.
        lead: see kernels.launch.kernel_args.TargetRows.
    """
    if lead is None:
        return tl.full((), 0, tl.int32)
    else:
        BYTES: tl.constexpr = row_logits.dtype.element_ty.primitive_bitwidth // 8
        return ((row_logits.to(tl.int64) & (GROUP_BYTES - 1)) // BYTES).to(tl.int32)


@triton.jit
def load_row(row_logits, places, num_tokens, in_words, lead):
    """float32 logits of the tokens at `places` of a row, -inf beside it.

    Args:
        row_logits: address of the row.
        places: as `offsets` of `load_logits`; token v lies at place v + row_lead.
        num_tokens: of the row.
        in_words: of `load_logits`, where there is no lead.
        lead: see `row_lead`.
    """
    if lead is None:
        return load_logits(row_logits, places, num_tokens, in_words, None)
    else:
        DTYPE: tl.constexpr = row_logits.dtype.element_ty
        BITS: tl.constexpr = DTYPE.primitive_bitwidth
        GROUP: tl.constexpr = GROUP_BYTES * 8 // BITS
        before = row_lead(row_logits, lead)
        end = num_tokens + before
        words = tl.multiple_of((row_logits.to(tl.int64) & -GROUP_BYTES).to(tl.pointer_type(tl.int32)), 16)
        firsts = _firsts(places, GROUP)
        numbers = tl.arange(0, 4)[None, :]
        at = tl.multiple_of(firsts // (32 // BITS), 4)[:, None] + numbers
        nothing = _nothing(DTYPE)
        parts = tl.load(words + at, mask=(firsts < end)[:, None], other=nothing)
        in_front = ~_behind(numbers, before, BITS) & _all_bits(firsts == 0)[:, None]
        behind = _behind(numbers, end % GROUP, BITS) & _all_bits(firsts // GROUP == end // GROUP)[:, None]
        return tl.reshape(_unpacked(_chosen(in_front | behind, nothing, parts), DTYPE), places.shape)


@triton.jit
def _part(part, number: tl.constexpr, is_first, before, is_last, num_left, BITS: tl.constexpr, nothing):
    """32 bits of a group; what lies behind the end of the row in its last group becomes -inf, and in its first group
    what lies before the row.

    Args:
        number: of the part in the group.
        is_first: all bits for the first group; not used where `before` is None.
        before: tokens of that group before the row.
        is_last: all bits for the group that the row ends in.
        num_left: tokens of that group in the row.
    """
    beside = _behind(number, num_left, BITS) & is_last
    if before is not None:
        beside = beside | (~_behind(number, before, BITS) & is_first)
    return _chosen(beside, nothing, part)


@triton.jit
def load_logits(row_logits, offsets, num_tokens, in_words, before=None):
    """float32 logits of the tokens at `offsets` of a row, -inf from `num_tokens` on.

    Args:
        row_logits: address of the row.
        offsets: as many tokens as 16 bytes hold, side by side in the last dimension, follow one another from a multiple
            of that number.
        num_tokens: of the row that are read.
        in_words: of `read_in_words`.
        before: None, or tokens in front of the row, fewer than 16 bytes hold, that `offsets` count too: the first of
            the row is at this offset. Only in words.
    """
    if in_words is None:
        return tl.load(row_logits + offsets, mask=offsets < num_tokens, other=-float("inf")).to(tl.float32)
    else:
        DTYPE: tl.constexpr = row_logits.dtype.element_ty
        BITS: tl.constexpr = DTYPE.primitive_bitwidth
        GROUP: tl.constexpr = GROUP_BYTES * 8 // BITS
        SIZE: tl.constexpr = offsets.numel // GROUP
        nothing = _nothing(DTYPE)
        pair = (nothing.to(tl.int64) << 32) | (nothing.to(tl.int64) & 0xFFFFFFFF)
        address = row_logits.to(tl.int64)
        end = num_tokens
        if before is not None:
            address -= before * (BITS // 8)
            end = tl.where(num_tokens > 0, num_tokens + before, 0)
        # In tokens.
        shift = ((address & (WORD_BYTES - 1)) // (BITS // 8)).to(tl.int32)
        words = tl.multiple_of((address & -WORD_BYTES).to(tl.pointer_type(tl.int64)), 8)
        firsts = _firsts(offsets, GROUP)
        places = firsts // GROUP * 2
        # A word is read if a token of the row lies in it.
        behind_first = firsts + (GROUP // 2 - shift)
        first_wanted, second_wanted = firsts < end, behind_first < end
        if before is not None:
            first_wanted = first_wanted & (behind_first > before)
            second_wanted = second_wanted & (behind_first + GROUP // 2 > before)
        p0, p1 = _two_parts(words, places, first_wanted, pair)
        p2, p3 = _two_parts(words, places + 1, second_wanted, pair)
        p4, p5 = _two_parts(words, places + 2, (shift > 0) & (behind_first + GROUP // 2 < end), pair)
        by_part = _all_bits((shift * BITS & 32) != 0)
        p0, p1 = _chosen(by_part, p1, p0), _chosen(by_part, p2, p1)
        p2, p3, p4 = _chosen(by_part, p3, p2), _chosen(by_part, p4, p3), _chosen(by_part, p5, p4)
        if BITS == 16:
            by_half = _all_bits((shift & 1) != 0)
            p0, p1 = _chosen(by_half, _halves(p0, p1), p0), _chosen(by_half, _halves(p1, p2), p1)
            p2, p3 = _chosen(by_half, _halves(p2, p3), p2), _chosen(by_half, _halves(p3, p4), p3)
        is_first, is_last = _all_bits(firsts == 0), _all_bits(firsts // GROUP == end // GROUP)
        num_left = end % GROUP
        p0 = _part(p0, 0, is_first, before, is_last, num_left, BITS, nothing)
        p1 = _part(p1, 1, is_first, before, is_last, num_left, BITS, nothing)
        p2 = _part(p2, 2, is_first, before, is_last, num_left, BITS, nothing)
        p3 = _part(p3, 3, is_first, before, is_last, num_left, BITS, nothing)
        parts = tl.reshape(tl.join(tl.join(p0, p2), tl.join(p1, p3)), (SIZE, 4))
        return tl.reshape(_unpacked(parts, DTYPE), offsets.shape)
