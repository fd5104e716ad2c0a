"""Advancing a grammar over draft tokens, one after the other, and rolling it back.

What a position may hold depends on the drafts before it, so the grammar is advanced over them; nothing is decided
yet, and at the end of the lookahead it is rolled back.
"""

from __future__ import annotations

from collections.abc import Iterable

from harness.constraint.masks import FREE, Masks, Matcher


class Lookahead:
    """One speculative advance over the drafts of one request."""

    def __init__(self, matcher: Matcher) -> None:
        self._matcher = matcher
        self.num_allowed = 0
        """Draft tokens that the grammar allows, up to the one that completes it."""
        self.is_refused = False
        """The grammar does not allow the next one."""

    @property
    def is_complete(self) -> bool:
        return self._matcher.is_complete

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

    def rows(self, token_ids: Iterable[int], masks: Masks) -> list[int]:
        """The masks of the positions of these tokens and of the one after them."""
        rows = []
        for token_id in token_ids:
            rows.append(self.row(masks))
            self.take(token_id)
        return [*rows, self.row(masks)]

    def rollback(self) -> None:
        """Roll the grammar back to where the lookahead began."""
        self._matcher.rollback(self.num_allowed)
