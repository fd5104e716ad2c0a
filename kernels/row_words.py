"""Logits of rows that begin anywhere: read in aligned words of 16 bytes and shifted into place in registers.

Where the length or the distance of rows is no multiple of 16 tokens, each begins at another place of a word. Read as
they are, they take a load for each token. Here a group of tokens, as many as 16 bytes hold, is put together from the two
words that it lies in: two loads, the second of which the next thread's first one brings too. What comes out is the same
to the bit. A word may hold tokens of another row, or bytes beside the tensor: they are read, which no memory forbids
within an aligned word, and left out.

A row that lies on words by its sizes is read as it is (`read_in_words`), and nothing of this is compiled.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from kernels.workspace import SHORT_CHUNK

WORD_BYTES: tl.constexpr = tl.constexpr(16)
"""That one thread loads at a time."""


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
def _four_words(words, firsts, wanted, SIZE: tl.constexpr):
    """The four 32-bit parts of a word of 16 bytes, each [SIZE]; 0 where not wanted."""
    places = firsts[:, None] + tl.arange(0, 4)[None, :]
    loaded = tl.load(words + places, mask=wanted[:, None], other=0)
    even, odd = tl.split(tl.reshape(loaded, (SIZE, 2, 2)))
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    return first, second, third, fourth


@triton.jit
def _side_by_side(first, second, third, fourth, SIZE: tl.constexpr):
    """[SIZE, 4] of four [SIZE]."""
    return tl.reshape(tl.join(tl.join(first, third), tl.join(second, fourth)), (SIZE, 4))


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
    inside = offsets < num_tokens
    if in_words is None:
        return tl.load(row_logits + offsets, mask=inside, other=-float("inf")).to(tl.float32)
    else:
        BITS: tl.constexpr = row_logits.dtype.element_ty.primitive_bitwidth
        GROUP: tl.constexpr = WORD_BYTES * 8 // BITS
        SIZE: tl.constexpr = offsets.numel // GROUP
        address = row_logits.to(tl.int64)
        # In tokens; the words are numbered in parts of 32 bits.
        shift = ((address & (WORD_BYTES - 1)) // (BITS // 8)).to(tl.int32)
        words = tl.multiple_of((address - (address & (WORD_BYTES - 1))).to(tl.pointer_type(tl.int32)), 16)
        columns = tl.arange(0, GROUP)[None, :]
        # Sums of integers, of which all but one are 0, cost nothing.
        firsts = tl.sum(tl.where(columns == 0, tl.reshape(offsets, (SIZE, GROUP)), 0), axis=1)
        # A product, so that the compiler sees that a word is whole and gives it to a thread.
        places = firsts // GROUP * 4
        w0, w1, w2, w3 = _four_words(words, places, firsts < num_tokens, SIZE)
        reaches = (shift > 0) & (firsts + (GROUP - shift) < num_tokens)
        w4, w5, w6, w7 = _four_words(words, places + 4, reaches, SIZE)
        parts = shift // (32 // BITS)
        by_two = (parts & 2) != 0
        w0, w1, w2 = tl.where(by_two, w2, w0), tl.where(by_two, w3, w1), tl.where(by_two, w4, w2)
        w3, w4, w5 = tl.where(by_two, w5, w3), tl.where(by_two, w6, w4), tl.where(by_two, w7, w5)
        by_one = (parts & 1) != 0
        w0, w1, w2 = tl.where(by_one, w1, w0), tl.where(by_one, w2, w1), tl.where(by_one, w3, w2)
        w3, w4 = tl.where(by_one, w4, w3), tl.where(by_one, w5, w4)
        if BITS == 16:
            by_half = (shift & 1) != 0
            w0 = tl.where(by_half, ((w0 >> 16) & 0xFFFF) | (w1 << 16), w0)
            w1 = tl.where(by_half, ((w1 >> 16) & 0xFFFF) | (w2 << 16), w1)
            w2 = tl.where(by_half, ((w2 >> 16) & 0xFFFF) | (w3 << 16), w2)
            w3 = tl.where(by_half, ((w3 >> 16) & 0xFFFF) | (w4 << 16), w3)
        joined = _side_by_side(w0, w1, w2, w3, SIZE)
        if BITS == 16:
            if row_logits.dtype.element_ty == tl.bfloat16:
                low = (joined << 16).to(tl.float32, bitcast=True)
                high = (joined & -65536).to(tl.float32, bitcast=True)
            else:
                low = joined.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
                high = (joined >> 16).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
            values = tl.reshape(tl.join(low, high), offsets.shape)
        else:
            values = tl.reshape(joined.to(tl.float32, bitcast=True), offsets.shape)
        return tl.where(inside, values, -float("inf"))
