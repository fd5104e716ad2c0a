"""Where workers are started next, by how often none began there; knows no worker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

MAX_STARTS = 3
"""Of a place, of which none begins, before no worker is started there any more."""


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
        """The place, of those that are not taken, where the fewest workers failed to begin; None if all are bad."""
        free = [place for place in range(self._num_places) if place not in taken]
        good = [place for place in free if self._failed_starts[place] < MAX_STARTS]
        return min(good, key=self._failed_starts.__getitem__, default=None)
