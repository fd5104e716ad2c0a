"""Garbage collection beside measured work and beside imports."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def gc_paused() -> Iterator[None]:
    """Leave what exists at the start out of every garbage collection until the end.

    A full pass over all that a process holds takes 0.1 to 0.5 s. It comes when enough new objects have piled up, in the
    middle of some request, and would count as its latency.
    """
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextmanager
def gc_off_for_imports() -> Iterator[None]:
    """Collect no garbage until the end; what exists then counts as old, so that no collection visits it soon.

    Nearly all that imports make stays, and every full pass visits all of it again.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        # moves all objects to the oldest generation without visiting them
        gc.freeze()
        gc.unfreeze()
        gc.enable()
