"""Named places at which a test may end the process; without a test they do nothing."""

from __future__ import annotations

from collections.abc import Callable

on_reached: Callable[[str], None] | None = None
"""Called with the name of every place that is reached; set by tests alone."""


def reached(place: str) -> None:
    """Say that the work has come to a place."""
    if on_reached is not None:
        on_reached(place)
