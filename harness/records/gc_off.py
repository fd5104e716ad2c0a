"""No garbage collection while much is made that stays: records that are read, modules that are imported."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def gc_off() -> Iterator[None]:
    """Collect no garbage until the end; what exists then counts as old, so that no collection visits it soon.

    Records have no cycles, and nearly all that imports make stays; every full pass would visit all of it again.
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
