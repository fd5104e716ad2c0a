"""Counter-based random streams: every random number is a function of where it is used, and of nothing else.

Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011) in plain int64 arithmetic, word
for word what `tl.philox(seed, c0, c1, c2, c3)` gives in a Triton kernel:

    key     = (low 32 bits of the seed, high 32 bits of the seed)
    counter = (draw, position, round, purpose), each taken modulo 2^32

The draw tells numbers of one purpose, position and round apart: the tokens of coupled noise, and the nodes of a tree of
drafts that have one position (kernels.reference.tree_shape.branches); that of a chain is 0.

Purposes never share a stream, and a position that is drafted again in a later round gets fresh numbers, except in the
purpose `coupled`, which is defined by reuse: its round word is 0 or 1 whatever the round. Nothing here knows slots or
batches.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import torch
from torch import Tensor

MASK = 0xFFFFFFFF
MULTIPLIER_0, MULTIPLIER_2 = 0xD2511F53, 0xCD9E8D57
WEYL_0, WEYL_1 = 0x9E3779B9, 0xBB67AE85
NUM_ROUNDS = 10
HIGH_ROUND, LOW_ROUND = 0, 1
"""The round word of the blocks with the upper and with the lower words of coupled noise."""
TOKENS_PER_BLOCK = 4
FEW = 16
"""Numbers at a time that take less time as Python's integers than as tensors of a CPU."""
BLOCKS_PER_CHUNK = 16384
"""Philox blocks computed at a time on a CPU, so that the few tensors of a chunk stay in a core's cache."""
BLOCKS_PER_GPU_CHUNK = 2**23
"""The same on a GPU, where a chunk must be worth its launches; 64 MiB a tensor."""


class Purpose(IntEnum):
    """What a random number is for; the last word of the counter."""

    draft = 1
    accept = 2
    residual = 3
    bonus = 4
    coupled = 5


def _words(
    seeds: Tensor, draw: Tensor | int, positions: Tensor | int, rounds: Tensor | int, purpose: Tensor | int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The four words, each shaped as the arguments broadcast."""
    counter = draw, positions, rounds, purpose
    if seeds.device.type == "cpu":
        given = torch.broadcast_tensors(seeds, *map(torch.as_tensor, counter))
        if 0 < given[0].numel() <= FEW:
            each = zip(*(words.flatten().tolist() for words in given), strict=True)
            columns = zip(*(_mixed(key, *words) for key, *words in each), strict=True)
            word_0, word_1, word_2, word_3 = (torch.tensor(column).view_as(given[0]) for column in columns)
            return word_0, word_1, word_2, word_3
    # what is multiplied must be a tensor: a number's products exceed 64 bits
    word_0, word_2 = (torch.as_tensor(word, device=seeds.device) for word in (draw, rounds))
    return _mixed(seeds, word_0, positions, word_2, purpose)


def _mixed(key: Any, draw: Any, position: Any, round_: Any, purpose: Any) -> tuple[Any, Any, Any, Any]:
    """The four words of int64 tensors or of integers.

    The product of two 32-bit words wraps in int64, but its 64 bits are right: the shift is masked afterwards, and words
    1 and 3 keep rubbish above bit 31 until the end, because only their low halves are ever used.
    """
    key_0, key_1 = key & MASK, (key >> 32) & MASK
    word_0, word_1, word_2, word_3 = draw & MASK, position & MASK, round_ & MASK, purpose & MASK
    for _ in range(NUM_ROUNDS):
        product_0, product_2 = word_0 * MULTIPLIER_0, word_2 * MULTIPLIER_2
        word_0 = ((product_2 >> 32) ^ (word_1 ^ key_0)) & MASK
        word_2 = ((product_0 >> 32) ^ (word_3 ^ key_1)) & MASK
        word_1, word_3 = product_2, product_0
        key_0, key_1 = (key_0 + WEYL_0) & MASK, (key_1 + WEYL_1) & MASK
    return word_0, word_1 & MASK, word_2, word_3 & MASK


def philox(
    seeds: Tensor, draw: Tensor | int, positions: Tensor | int, rounds: Tensor | int, purpose: Tensor | int
) -> Tensor:
    """Four random 32-bit words for each element of the broadcast arguments.

    Args:
        seeds: int64, the key. The other arguments are int64 tensors or numbers that broadcast with it.
        draw: index of the draw among those of one purpose, position and round.
        positions: absolute position, in the request's token sequence, of the token the number decides about.
        rounds: the request's own count of rounds.
        purpose: a `Purpose`.

    Returns:
        [..., 4] int64 with values in [0, 2^32).
    """
    return torch.stack(torch.broadcast_tensors(*_words(seeds, draw, positions, rounds, purpose)), dim=-1)


def to_unit(high: Tensor, low: Tensor) -> Tensor:
    """Two words -> a multiple of 2^-53 in (0, 1); 0 becomes 2^-54, so that its logarithm is finite."""
    integer = ((high >> 5) << 26) | (low >> 6)
    return integer.to(torch.float64).clamp_(min=0.5).mul_(2.0**-53)


def uniform(
    seeds: Tensor, purpose: Tensor | int, positions: Tensor | int, rounds: Tensor | int, draw: Tensor | int = 0
) -> Tensor:
    """One uniform number in the open interval (0, 1), from words 0 and 1.

    Args: as for `philox`.

    Returns:
        float64, shaped as the arguments broadcast; 53 bits.
    """
    word_0, word_1, _, _ = torch.broadcast_tensors(*_words(seeds, draw, positions, rounds, purpose))
    return to_unit(word_0, word_1)


def gumbel(seeds: Tensor, positions: Tensor, vocab_size: int) -> Tensor:
    """The coupled method's standard Gumbel noise: a function of (seed, position, token) only.

    Its version is kernels.random.stream_version.COUPLED_STREAM_VERSION.

    Args:
        seeds: [N] int64.
        positions: [N] int64.
        vocab_size: V; the noise of a token does not depend on it.

    Returns:
        [N, V] float64: -log(-log u), where token v takes the upper word of u from word v % 4 of draw v // 4 in round
        word HIGH_ROUND, and the lower one from the same word in LOW_ROUND. Four tokens share a block, so that a kernel
        that only compares bounds, for which the upper word does, computes a quarter of a block for each.
    """
    num_blocks = -(-vocab_size // TOKENS_PER_BLOCK)
    noise = torch.empty(len(seeds), num_blocks, TOKENS_PER_BLOCK, dtype=torch.float64, device=seeds.device)
    blocks_per_chunk = BLOCKS_PER_CHUNK if seeds.device.type == "cpu" else BLOCKS_PER_GPU_CHUNK
    rows_per_chunk = max(1, blocks_per_chunk // num_blocks)
    for row in range(0, len(seeds), rows_per_chunk):
        rows = slice(row, row + rows_per_chunk)
        for block in range(0, num_blocks, blocks_per_chunk):
            blocks = torch.arange(block, min(block + blocks_per_chunk, num_blocks), device=seeds.device)
            high, low = (
                _words(seeds[rows, None], blocks, positions[rows, None], round_word, Purpose.coupled)
                for round_word in (HIGH_ROUND, LOW_ROUND)
            )
            part = noise[rows, block : block + blocks_per_chunk]
            for place in range(TOKENS_PER_BLOCK):
                part[..., place] = to_unit(high[place], low[place])
            part.log_().neg_().log_().neg_()
    return noise.view(len(seeds), TOKENS_PER_BLOCK * num_blocks)[:, :vocab_size]
