"""What the shape of a tree of drafts says about walks through it, on the host."""

from __future__ import annotations

from functools import lru_cache


@lru_cache(maxsize=256)
def longest_walk(parents: tuple[int, ...]) -> int:
    """Most draft tokens that recursive rejection asks about: at each node children up to the accepted one, or all.

    Args:
        parents: index of the draft token that each one follows, smaller than its own; -1 for children of the context.
    """
    most = [0] * (len(parents) + 1)
    for node in range(len(parents), -1, -1):
        children = [place + 1 for place, parent in enumerate(parents) if parent + 1 == node]
        most[node] = max((asked + most[child] for asked, child in enumerate(children, 1)), default=0)
    return most[0]
