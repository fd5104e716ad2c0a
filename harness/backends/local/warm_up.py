"""The end of a warm-up on a CPU, where every step after the first ones runs operations that have run already."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from harness.backends.backend import OnRound

NUM_STEPS = 3
"""That a warm-up takes: the prompts, and two rounds."""


class _IsWarm(Exception):
    """Ends a warm-up."""


@contextmanager
def first_steps(on_round: OnRound | None) -> Iterator[OnRound]:
    """Gives what to call after every round instead of `on_round`, and ends the block after the first steps."""
    num_ended = 0

    def ended_round() -> None:
        nonlocal num_ended
        if on_round is not None:
            on_round()
        num_ended += 1
        if num_ended == NUM_STEPS:
            raise _IsWarm

    with suppress(_IsWarm):
        yield ended_round
