"""How rows of prompts are grouped where they are laid out in rows.

Rows are as wide as those of rounds, and every one that attention takes alone reads all keys before it once more: at one
token a row a prompt of L tokens would read L^2 / 2 keys a layer. So rows of a prompt come in groups that attention
reads as one row; all other layers know tokens alone. Where a prompt does not fill its last group, rows of token 0
follow it in its slot. Their keys lie behind the prompt, where no query attends before other tokens have replaced them.
"""

from __future__ import annotations

GROUP_TOKENS = 16
"""Tokens of a group at most, unless a single row has more. Four query heads of width 128 a key head make them 64
queries, a full tile of fused attention in a 2-byte type; wider groups would read keys no more rarely, and leave more of
their last group empty."""


def rows_of_group(width: int) -> int:
    """Rows of a group, each of so many tokens."""
    return max(1, GROUP_TOKENS // width)


def tokens_of_group(width: int) -> int:
    """Tokens of a group of rows of so many each."""
    return rows_of_group(width) * width


def rows_for(num_tokens: int, width: int) -> int:
    """Rows, in whole groups, that hold so many tokens of a prompt."""
    return -(-num_tokens // tokens_of_group(width)) * rows_of_group(width)
