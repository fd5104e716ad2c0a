"""Prompts of one exact length, for speed at fixed sizes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle, islice


def exact_length(token_ids: Sequence[int], num_tokens: int) -> list[int]:
    """The first num_tokens of the tokens, repeated from their start as often as it takes.

    Args:
        token_ids: a prompt of at least one token.
        num_tokens: how many are wanted, 1 or more.
    """
    return list(islice(cycle(token_ids), num_tokens))
