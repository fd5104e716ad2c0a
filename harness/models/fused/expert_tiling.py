"""How the products of experts are cut: functions of shapes alone."""

from __future__ import annotations

from typing import NamedTuple


class ExpertTiling(NamedTuple):
    """The work of a program of one of the two products."""

    columns: int
    """Rows of the weight, which are components of the result."""
    depth: int
    """Components of a row that a block holds."""
    num_stages: int
    """Blocks in work: one that is multiplied, and the others under way."""
    num_warps: int


MIN_ROWS = 16
"""Tokens of the smallest tile."""
ROWS_FROM = {16: 0, 32: 128}
"""Tokens of a tile, and of how many tokens of a call on. Of 64 experts, 4 a token, each has N / 16 tokens on average;
one with more than a tile holds reads its weights again, from the L2 cache where they still lie there."""


def rows_of_tile(num_tokens: int) -> int:
    """Tokens that a program multiplies at a time."""
    return max(rows for rows, least in ROWS_FROM.items() if num_tokens >= least)
