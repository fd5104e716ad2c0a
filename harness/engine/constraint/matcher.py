"""What policies and masks ask of a grammar, whoever follows it. Needs no torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from torch import Tensor

FREE = -1
"""In the place of a mask's number: everything is allowed."""


class Matcher(Protocol):
    """A grammar and how far into it an answer has come: what the policies ask of it."""

    @property
    def is_complete(self) -> bool:
        """Whether the answer is complete and only the end of sequence can follow."""
        ...

    def accept(self, token_ids: Sequence[int]) -> int:
        """Advance over the longest prefix of the tokens that the grammar allows; returns its length."""
        ...

    def rollback(self, num_tokens: int) -> None:
        """Roll back so many accepted tokens."""
        ...

    def fill(self, words: Tensor) -> None:
        """Write which tokens may come next: [ceil(V / 32)] int32 on the host, bit v % 32 of word v // 32. An end of
        sequence may come where the answer is whole."""
        ...

    def fill_together(self, walks: Sequence[Walk], words: Tensor) -> list[Reach]:
        """Write the masks of walks of several matchers of this kind, into [M, ceil(V / 32)] int32 on the host.

        Returns:
            How far each of them came; the matchers are where they were.
        """
        return [_walk(walk, words) for walk in walks]


class Walk(NamedTuple):
    """The masks of a matcher where it stands, and after each of some tokens up to the first that it refuses."""

    matcher: Matcher
    first: int
    """Number of the first mask; the others follow it."""
    token_ids: Sequence[int]


class Reach(NamedTuple):
    """How far a walk came."""

    num_allowed: int
    """Tokens that the masks allow, one after the other, up to the one that completes the answer."""
    is_complete: bool
    """The last of them completes it: the masks of the walk end in front of what follows."""

    @property
    def num_masks(self) -> int:
        return self.num_allowed + (not self.is_complete)


def _walk(walk: Walk, words: Tensor) -> Reach:
    matcher, num_allowed = walk.matcher, 0
    while not matcher.is_complete:
        matcher.fill(words[walk.first + num_allowed])
        following = walk.token_ids[num_allowed : num_allowed + 1]
        if not following or not matcher.accept(following):
            break
        num_allowed += 1
    reach = Reach(num_allowed, matcher.is_complete)
    matcher.rollback(num_allowed)
    return reach
