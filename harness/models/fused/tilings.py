"""How harness.models.fused.skinny_linear cuts a product, and which products are torch's: a table of what was measured.

us of a product on one H200, weights of bfloat16 that no cache holds: ours / torch's, with silu_mul where gated. A
product that torch is faster at is torch's. A shape that was not timed goes by the rows that a program would read: ours
from as many on as in a shape that was timed and is ours, with tokens of at least 4,096 components.

    rows of the weight, components of a token          16 tokens        64 tokens        96 tokens
    6144, 4096      queries, keys, values            14.5 /  15.1   [ 16.3 /  15.7]  [ 18.6 /  15.9]
    4096, 4096      output                           10.1 /  13.4     11.5 /  11.8     12.6 /  14.4
    4096, 14336     down, Llama-3-8B                 29.4 /  32.7     31.7 /  35.9     34.3 /  37.8
    4096, 12288     down, Qwen3-8B                   25.8 /  29.1     28.1 /  31.8     30.4 /  33.9
    28672, 4096     gate and up, Llama-3-8B          55.7 /  62.1     59.5 /  66.2     64.3 /  66.8
    24576, 4096     gate and up, Qwen3-8B            48.3 /  51.2     51.7 /  53.3   [ 56.3 /  55.4]
    128256, 4096    logits, Llama-3-8B              235.8 / 243.1    254.0 / 270.8   [273.8 / 259.6]
    151936, 4096    logits, Qwen3-8B                278.7 / 290.7    297.3 / 298.6   [330.3 / 305.8]
    4096, 8192      features of a head, unshared   [ 23.9 /  23.4]  [ 41.3 /  23.7]  [ 63.4 /  25.3]

[ ]: the table leaves it to torch. Down of Qwen3-8B at 16 tokens was timed with 4 splits (at 8 tokens it took 25.9 us
with 2, as in the table); for the other two 2 splits take at most 0.1 us longer than 4, and leave half as much to be
summed. At 1, 8 and 32 tokens ours took 4 to 26 % less wherever the table takes it. Other numbers were not timed.

us with weights of 8 bits / of bfloat16, as this table has them, on one H100:

    rows, components           16 tokens     64            96            128           256           2048
    6144, 4096               17.7 / 20.2   19.9 / 20.9   23.3 / 21.8   28.6 / 22.0   36.3 / 24.3   [ 274 / 134]
    4096, 4096               11.4 / 14.2   13.0 / 15.5   15.1 / 16.0   17.9 / 15.9   24.1 / 19.9   [ 163 /  89]
    4096, 14336              30.7 / 43.5   34.8 / 46.2   41.3 / 47.8   45.8 / 59.7   63.0 / 60.7   [ 525 / 298]
    28672, 4096              57.7 / 95.5   69.3 / 92.5   83.6 / 93.0   93.7 / 103    166  / 103    [1321 / 614]

[ ]: not used; beyond 256 tokens weights are written out in the type of the states, and torch multiplies.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

MULTIPROCESSORS = 132
"""Of an H100 or H200."""
MIN_FEATURES = 4096
"""Components of the shortest tokens that were measured."""
COLUMNS = ((16, 0), (32, 0), (64, 0), (64, 32), (128, 0), (256, 0))
"""Columns of the two products that hold a number of tokens; the second may have none."""
MIN_TOKENS = COLUMNS[0][0]
MAX_TOKENS = 96
"""More tokens go to torch, but with weights of 8 bits."""
FP8_MAX_TOKENS = sum(COLUMNS[-1])
"""With those, more tokens go to torch."""


class Kind(Enum):
    """What a product may do."""

    shared = "its programs may share the components of the tokens"
    gated = "half of its rows are a gate's"
    whole = "neither"


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

    @staticmethod
    def columns(num_tokens: int) -> tuple[int, int]:
        """Columns of the two products that hold so many tokens. Raises ValueError where none do."""
        found = next((pair for pair in COLUMNS if num_tokens <= sum(pair)), None)
        if found is None:
            raise ValueError(f"expected at most {FP8_MAX_TOKENS} tokens, found {num_tokens}; run torch's product")
        return found


class _Line(NamedTuple):
    """A line of the table."""

    max_tokens: int
    block_out: int
    block_in: int
    num_splits: int
    num_stages: int
    num_warps: int
    min_rows: int
    """Of a program, as few as were measured to be faster than torch: the fewer, the more it reads of the tokens for
    each of the weight."""


LINES = {
    Kind.shared: (
        _Line(16, 64, 128, 2, 5, 4, 47),
        _Line(64, 64, 64, 2, 8, 4, 63),
        _Line(MAX_TOKENS, 64, 128, 2, 5, 4, 63),
    ),
    Kind.gated: (
        _Line(16, 64, 128, 1, 3, 4, 47),
        _Line(64, 64, 64, 1, 4, 4, 47),
        _Line(MAX_TOKENS, 128, 64, 1, 5, 8, 109),
    ),
    Kind.whole: (_Line(16, 256, 128, 1, 3, 8, 144), _Line(64, 128, 128, 1, 4, 4, 122)),
}
"""By what a product may do, in the order of tokens."""
FP8_LINES = {
    Kind.shared: (
        _Line(96, 128, 128, 4, 4, 8, 94),
        _Line(128, 128, 128, 4, 3, 8, 94),
        _Line(FP8_MAX_TOKENS, 128, 64, 4, 4, 8, 94),
    ),
    Kind.gated: (
        _Line(96, 64, 128, 1, 3, 4, 47),
        _Line(128, 64, 64, 1, 4, 4, 47),
        _Line(FP8_MAX_TOKENS, 64, 64, 1, 4, 8, 47),
    ),
    Kind.whole: (),
}
"""The same for weights of 8 bits; fewer programs share the components where they would not all run at once. Rows are
those of the shapes that were timed, whether or not bfloat16 is faster there; what is left to torch is widened first."""


def tiling_for(
    num_tokens: int, in_features: int, num_rows: int, gated: bool, may_split: bool, in_fp8: bool = False
) -> Tiling | None:
    """The tiling of a product; None where torch's is to be taken.

    Args:
        num_tokens: N.
        in_features: components of a token.
        num_rows: of the weight.
        gated: half of the rows are a gate's.
        may_split: whether programs may share the components of the tokens; of no effect where gated.
        in_fp8: the weight takes 8 bits.
    """
    kind = Kind.gated if gated else Kind.shared if may_split else Kind.whole
    lines = FP8_LINES if in_fp8 else LINES
    line = next((line for line in lines[kind] if num_tokens <= line.max_tokens), None)
    if line is None or num_tokens == 0 or in_features < MIN_FEATURES or in_features % (line.num_splits * line.block_in):
        return None
    num_outputs, num_splits, at_once = num_rows // 2 if gated else num_rows, line.num_splits, line.block_out
    at_once *= MULTIPROCESSORS
    while in_fp8 and num_splits > 1 and num_outputs * num_splits > at_once:
        num_splits //= 2
    # Each multiprocessor has so many programs, of as many rows as can be.
    num_waves = _divided(num_outputs * num_splits, at_once)
    rows = _divided(num_outputs * num_splits, MULTIPROCESSORS * num_waves)
    if rows < line.min_rows:
        return None
    return Tiling(rows, line.block_out, line.block_in, num_splits, line.num_stages, line.num_warps)


def _divided(count: int, parts: int) -> int:
    """The quotient, rounded up."""
    return -(-count // parts)
