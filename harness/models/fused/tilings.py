"""How harness.models.fused.skinny_linear cuts a product: a function of shapes alone, fixed here after measurement.

One program in each multiprocessor reads its share of the weight, as evenly as whole rows allow. While it reads its rows
it reads the tokens too, from the L2 cache: N / rows of the weight's bytes. Where that is too much, several programs
share the components of the tokens, and have more rows each.
"""

from __future__ import annotations

from typing import NamedTuple

MULTIPROCESSORS = 132
"""Of an H100 or H200."""
MOST_TOKENS = 128
"""More tokens go to torch."""
LEAST_WEIGHTS = 4 * 2**20
"""Components of the smallest weight: reading fewer takes less time than starting."""
LEAST_TOKENS = 16
MOST_SPLITS = 4
ROWS_PER_TOKEN = 4
"""Rows of a share for each token, so that a quarter of the weight's bytes is read of the tokens."""
BLOCK_IN = 64
"""128 bytes of a row: what the memory reads at once."""
STAGE_BYTES = 80_000
"""Shared memory of a program, so that it fits in a multiprocessor (227 KiB) beside two of attention (72 KiB each), and
beside another product's: one that ends, and one that starts."""
MOST_STAGES = 8
PIECE = 256
"""Components of a row that are asked for at once, 512 bytes."""
MOST_PIECES = 2


class Tiling(NamedTuple):
    """A way to cut a product."""

    rows: int
    """Rows of the weight that a program reads; of the gate and of up each, where there is a gate."""
    block_out: int
    """Rows of its tile, rows or more, a power of two."""
    block_in: int
    """Components of the tokens in a step."""
    num_splits: int
    """Programs that share the components of the tokens."""
    num_stages: int
    num_warps: int
    num_pieces: int
    """Pieces of each row that a program asks for before it waits, PIECE components each."""

    @staticmethod
    def tokens(num_tokens: int) -> tuple[int, int]:
        """Columns of the two products that hold so many tokens, powers of two; the second may have none."""
        first = LEAST_TOKENS
        while 2 * first <= num_tokens:
            first *= 2
        if num_tokens <= first:
            return first, 0
        rest = LEAST_TOKENS
        while rest < num_tokens - first:
            rest *= 2
        return (2 * first, 0) if rest == first else (first, rest)


def tiling_for(num_tokens: int, in_features: int, num_rows: int, gated: bool, may_split: bool) -> Tiling | None:
    """The tiling of a product; None where torch's is to be taken.

    Args:
        num_tokens: N.
        in_features: components of a token.
        num_rows: of the weight.
        gated: half of the rows are a gate's.
        may_split: whether programs may share the components of the tokens.
    """
    if not 0 < num_tokens <= MOST_TOKENS or in_features % BLOCK_IN or num_rows * in_features < LEAST_WEIGHTS:
        return None
    num_parts = 2 if gated else 1
    out_features = num_rows // num_parts
    wide = num_tokens > 2 * LEAST_TOKENS
    most_rows = (256 if wide else 128) // num_parts
    num_splits = 1
    while may_split and num_splits < MOST_SPLITS and _rows(out_features, num_splits, 1) < ROWS_PER_TOKEN * num_tokens:
        if in_features % (2 * num_splits * BLOCK_IN):
            break
        num_splits *= 2
    num_waves = _divided(_rows(out_features, num_splits, 1), most_rows)
    rows = _rows(out_features, num_splits, num_waves)
    block_out = 64
    while block_out < rows:
        block_out *= 2
    stage = (num_parts * block_out + sum(Tiling.tokens(num_tokens))) * BLOCK_IN * 2
    num_stages = max(3, min(MOST_STAGES, STAGE_BYTES // stage))
    num_warps = 8 if block_out * num_parts > 128 else 4
    num_pieces = min(MOST_PIECES, in_features // num_splits // PIECE)
    return Tiling(rows, block_out, BLOCK_IN, num_splits, num_stages, num_warps, num_pieces)


def _rows(out_features: int, num_splits: int, num_waves: int) -> int:
    """Rows of a program's share when every multiprocessor has so many programs."""
    return _divided(out_features * num_splits, MULTIPROCESSORS * num_waves)


def _divided(count: int, parts: int) -> int:
    """The quotient, rounded up."""
    return -(-count // parts)
