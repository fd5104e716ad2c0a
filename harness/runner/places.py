"""Where the next worker starts, by the number of failed starts there; does not know workers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

MAX_STARTS = 3
"""Failed starts in a row after which a place gets no more workers."""


class Places:
    """The places of a launcher."""

    def __init__(self, num_places: int) -> None:
        self._num_places = num_places
        self._failed_starts: Counter[int] = Counter()

    def failed(self, place: int) -> None:
        """A worker there could not begin, or could run nothing."""
        self._failed_starts[place] += 1

    def worked(self, place: int) -> None:
        """A worker there has kept something."""
        self._failed_starts[place] = 0

    def best(self, taken: Collection[int]) -> int | None:
        """The free place with the fewest failed starts; None if none is free or all have failed MAX_STARTS times."""
        free = [place for place in range(self._num_places) if place not in taken]
        good = [place for place in free if self._failed_starts[place] < MAX_STARTS]
        return min(good, key=self._failed_starts.__getitem__, default=None)
