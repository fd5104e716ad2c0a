"""Logits of rows that begin anywhere: read in aligned words of 8 bytes and shifted into place in registers.

Where the length or the distance of rows is no multiple of 16 tokens, each begins at another place of a word. Read as
they are, they take a load for each token. Here a group of tokens, as many as 16 bytes hold, is put together from the
three words that it lies in. What comes out is the same to the bit. A word may hold tokens of another row, or bytes
beside the tensor: they are read, which no memory forbids within an aligned word, and left out.

A row that lies on words of 16 bytes by its sizes is read as it is (`read_in_words`), and nothing of this is compiled.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from .workspace import SHORT_CHUNK

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
def _part(part, number: tl.constexpr, is_last, num_left, BITS: tl.constexpr, nothing):
    """32 bits of a group; what lies behind the end of the row in its last group becomes -inf.

    Args:
        number: of the part in the group.
        is_last: all bits for the group that the row ends in.
        num_left: tokens of that group in the row.
    """
    TOKENS: tl.constexpr = 32 // BITS
    behind = _all_bits(num_left <= number * TOKENS)
    if BITS == 16:
        behind = behind | (_all_bits(num_left == number * TOKENS + 1) & -65536)
    return _chosen(behind & is_last, nothing, part)


@triton.jit
def load_logits(row_logits, offsets, num_tokens, in_words):
    """float32 logits of the tokens at `offsets` of a row, -inf from `num_tokens` on.

    Args:
        row_logits: address of the row.
        offsets: as many tokens as 16 bytes hold, side by side in the last dimension, follow one another from a multiple
            of that number.
        num_tokens: of the row that are read.
        in_words: of `read_in_words`.
    """
    if in_words is None:
        return tl.load(row_logits + offsets, mask=offsets < num_tokens, other=-float("inf")).to(tl.float32)
    else:
        DTYPE: tl.constexpr = row_logits.dtype.element_ty
        BITS: tl.constexpr = DTYPE.primitive_bitwidth
        GROUP: tl.constexpr = GROUP_BYTES * 8 // BITS
        SIZE: tl.constexpr = offsets.numel // GROUP
        # -inf in every token of 32 bits.
        NOTHING: tl.constexpr = -8388608 if BITS == 32 else (-8323200 if tl.bfloat16 == DTYPE else -67044352)
        nothing = tl.full((), NOTHING, tl.int32)
        pair = (nothing.to(tl.int64) << 32) | (nothing.to(tl.int64) & 0xFFFFFFFF)
        address = row_logits.to(tl.int64)
        # In tokens.
        shift = ((address & (WORD_BYTES - 1)) // (BITS // 8)).to(tl.int32)
        words = tl.multiple_of((address & -WORD_BYTES).to(tl.pointer_type(tl.int64)), 8)
        # The first of each group, taken so that the compiler gives a group to a thread.
        firsts, _ = tl.split(tl.reshape(offsets, (SIZE * GROUP // 2, 2)))
        firsts, _ = tl.split(tl.reshape(firsts, (SIZE * GROUP // 4, 2)))
        if GROUP == 8:
            firsts, _ = tl.split(tl.reshape(firsts, (SIZE, 2)))
        places = firsts // GROUP * 2
        # A word is read if a token of the row lies in it.
        behind_first = firsts + (GROUP // 2 - shift)
        p0, p1 = _two_parts(words, places, firsts < num_tokens, pair)
        p2, p3 = _two_parts(words, places + 1, behind_first < num_tokens, pair)
        p4, p5 = _two_parts(words, places + 2, (shift > 0) & (behind_first + GROUP // 2 < num_tokens), pair)
        by_part = _all_bits((shift * BITS & 32) != 0)
        p0, p1 = _chosen(by_part, p1, p0), _chosen(by_part, p2, p1)
        p2, p3, p4 = _chosen(by_part, p3, p2), _chosen(by_part, p4, p3), _chosen(by_part, p5, p4)
        if BITS == 16:
            by_half = _all_bits((shift & 1) != 0)
            p0, p1 = _chosen(by_half, _halves(p0, p1), p0), _chosen(by_half, _halves(p1, p2), p1)
            p2, p3 = _chosen(by_half, _halves(p2, p3), p2), _chosen(by_half, _halves(p3, p4), p3)
        is_last = _all_bits(firsts // GROUP == num_tokens // GROUP)
        num_left = num_tokens % GROUP
        p0, p1 = _part(p0, 0, is_last, num_left, BITS, nothing), _part(p1, 1, is_last, num_left, BITS, nothing)
        p2, p3 = _part(p2, 2, is_last, num_left, BITS, nothing), _part(p3, 3, is_last, num_left, BITS, nothing)
        parts = tl.reshape(tl.join(tl.join(p0, p2), tl.join(p1, p3)), (SIZE, 4))
        if tl.float32 == DTYPE:
            values = parts.to(tl.float32, bitcast=True)
        elif tl.bfloat16 == DTYPE:
            values = tl.join((parts << 16).to(tl.float32, bitcast=True), (parts & -65536).to(tl.float32, bitcast=True))
        else:
            lower, upper = parts.to(tl.int16), (parts >> 16).to(tl.int16)
            values = tl.join(lower, upper).to(tl.float16, bitcast=True).to(tl.float32)
        return tl.reshape(values, offsets.shape)
