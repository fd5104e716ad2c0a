"""Keeps Python's cycle collector from stalling a run: a full pass over all that a process holds takes 0.1 to 0.5 s.

Such a pass comes when enough new objects have piled up, in the middle of some request, and would count as its latency.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def gc_paused() -> Iterator[None]:
    """Leave what exists at the start out of every collection until the end; what is made meanwhile is collected."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
