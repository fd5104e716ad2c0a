"""The device twin of kernels.random.streams: the same Philox words, the same uniform numbers, bit for bit."""

from __future__ import annotations

import triton
import triton.language as tl

DRAFT: tl.constexpr = tl.constexpr(1)
ACCEPT: tl.constexpr = tl.constexpr(2)
RESIDUAL: tl.constexpr = tl.constexpr(3)
BONUS: tl.constexpr = tl.constexpr(4)
COUPLED: tl.constexpr = tl.constexpr(5)
"""kernels.random.streams.Purpose, which a kernel cannot read; a test holds the two together."""
HIGH_ROUND: tl.constexpr = tl.constexpr(0)
LOW_ROUND: tl.constexpr = tl.constexpr(1)
"""Round words of the upper and the lower words of coupled noise, as in kernels.random.streams."""


@triton.jit
def load_stream(streams, request, wanted):
    """(seed, position, round) of a request; 0 unless wanted."""
    return (
        tl.load(streams.seeds + request, mask=wanted, other=0),
        tl.load(streams.positions + request, mask=wanted, other=0),
        tl.load(streams.rounds + request, mask=wanted, other=0),
    )


@triton.jit
def to_unit(high, low):
    """Two 32-bit words -> float64 multiple of 2^-53 in (0, 1); 0 becomes 2^-54."""
    integer = (high >> 5).to(tl.float64) * 67108864.0 + (low >> 6).to(tl.float64)
    return tl.maximum(integer, 0.5) * 1.1102230246251565e-16


@triton.jit
def words(seed, purpose, position, round_index, draw):
    """The four words of a counter; each argument is taken modulo 2^32, the seed modulo 2^64.

    Args:
        seed, position, round_index: int64. purpose, draw: integers, constants too; `draw` may be a vector.
    """
    draw = (position * 0 + draw).to(tl.int32)
    position = draw * 0 + position.to(tl.int32)
    round_index = draw * 0 + round_index.to(tl.int32)
    purpose = draw * 0 + purpose
    return tl.philox(seed, draw, position, round_index, purpose)


@triton.jit
def uniform(seed, purpose, position, round_index):
    """Draw 0 of a stream: float64 in (0, 1), 53 bits."""
    first, second, _, _ = words(seed, purpose, position, round_index, 0)
    return to_unit(first, second)


@triton.jit
def chosen_word(four, token):
    """Of the four words of a block the one that belongs to a token of coupled noise."""
    first, second, third, fourth = four
    place = token & 3
    return tl.where(place < 2, tl.where(place == 0, first, second), tl.where(place == 2, third, fourth))


@triton.jit
def coupled_word(seed, position, token, round_word: tl.constexpr):
    """The upper or lower word of the coupled noise of any tokens."""
    return chosen_word(words(seed, COUPLED, position, position * 0 + round_word, token >> 2), token)


@triton.jit
def coupled_high_words(seed, position, tokens):
    """uint32 upper words of the coupled noise of a tile of tokens; four side by side in the last dimension follow one
    another from a multiple of 4, and share a block."""
    firsts, _ = tl.split(tl.reshape(tokens, (tokens.numel // 2, 2)))
    firsts, _ = tl.split(tl.reshape(firsts, (tokens.numel // 4, 2)))
    first, second, third, fourth = words(seed, COUPLED, position, position * 0 + HIGH_ROUND, firsts >> 2)
    return tl.reshape(tl.join(tl.join(first, third), tl.join(second, fourth)), tokens.shape)
