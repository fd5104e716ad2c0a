"""A clock that shares every moment equally among the requests in flight. Knows no records."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


def shared_clock(start: ArrayLike, end: ArrayLike) -> Callable[[ArrayLike], Floats]:
    """The clock of some requests.

    Args:
        start, end: [R] when each request began and ended, in seconds.

    Returns:
        A time in seconds -> time of one request up to there: the integral of 1 / requests in flight.
    """
    begun, ended = np.sort(np.asarray(start, dtype=np.float64)), np.sort(np.asarray(end, dtype=np.float64))
    times = np.unique(np.concatenate([begun, ended]))
    if not len(times):
        return lambda at: np.zeros_like(np.asarray(at, dtype=np.float64))
    num_begun, num_ended = (np.searchsorted(each, times[:-1], side="right") for each in (begun, ended))
    passed = np.append(0.0, np.cumsum(np.diff(times) / np.maximum(num_begun - num_ended, 1)))
    return lambda at: np.interp(np.asarray(at, dtype=np.float64), times, passed)
