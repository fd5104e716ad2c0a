"""Advancing a grammar over draft tokens, one after the other, and rolling it back.

What a position may hold depends on the drafts before it, so the grammar is advanced over them; nothing is decided
yet, and at the end of the lookahead it is rolled back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from harness.engine.constraint.matcher import FREE, Matcher

if TYPE_CHECKING:
    from harness.engine.constraint.masks import Masks


class Lookahead:
    """One speculative advance over the drafts of one request."""

    def __init__(self, matcher: Matcher) -> None:
        self._matcher = matcher
        self.num_allowed = 0
        """Draft tokens that the grammar allows, up to the one that completes it."""
        self.is_refused = False
        """The grammar does not allow the next one."""
        self._was_complete: bool | None = None
        """At the end of the lookahead, once the grammar has been rolled back."""

    @property
    def is_complete(self) -> bool:
        return self._matcher.is_complete if self._was_complete is None else self._was_complete

    @property
    def has_ended(self) -> bool:
        """Whether what follows cannot be committed, so that no mask is needed for it."""
        return self.is_refused or self.is_complete

    def row(self, masks: Masks) -> int:
        """The mask of the position reached; FREE beyond the end of the lookahead."""
        return FREE if self.has_ended else masks.add(self._matcher)

    def take(self, token_id: int) -> None:
        """Advance over the next draft token."""
        if not self.has_ended:
            self.is_refused = self._matcher.accept((token_id,)) == 0
            self.num_allowed += not self.is_refused

    def look_over(self, token_ids: Sequence[int]) -> None:
        """Look over all drafts of a round at once, from the beginning, and roll the grammar back."""
        matcher = self._matcher
        self.num_allowed = matcher.accept(token_ids) if token_ids else 0
        self._was_complete = matcher.is_complete
        self.is_refused = self.num_allowed < len(token_ids) and not self._was_complete
        matcher.rollback(self.num_allowed)

    def rollback(self) -> None:
        """Roll the grammar back to where the lookahead began, if it is not there yet."""
        if self._was_complete is None:
            self._was_complete = self._matcher.is_complete
            self._matcher.rollback(self.num_allowed)
