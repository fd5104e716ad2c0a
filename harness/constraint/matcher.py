"""What the policies ask of a grammar that follows one answer token by token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor


class Matcher(Protocol):
    """A grammar and how far into it an answer has come."""

    @property
    def is_complete(self) -> bool:
        """Whether the answer is whole and nothing but the end of sequence can follow."""
        ...

    def accept(self, token_ids: Sequence[int]) -> int:
        """Go on over the longest prefix of the tokens that the grammar allows; returns its length."""
        ...

    def rollback(self, num_tokens: int) -> None:
        """Take back so many accepted tokens."""
        ...

    def fill(self, words: Tensor) -> None:
        """Write which tokens may come next: [ceil(V / 32)] int32 on the host, bit v % 32 of word v // 32. An end of
        sequence may come where the answer is whole."""
        ...
