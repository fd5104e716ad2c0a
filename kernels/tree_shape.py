"""What the shape of a tree of drafts says about walks through it, on the host."""

from __future__ import annotations

from collections.abc import Callable
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


@lru_cache(maxsize=256)
def most_node_steps(parents: tuple[int, ...], steps_of: Callable[[int], int]) -> int:
    """Most steps of a walk that tests the children of a node together, from the context to a leaf.

    A walk that ends at a node with children takes one step more there, and none below.

    Args:
        parents: as of `longest_walk`.
        steps_of: a number of children -> steps from the reading of their node's row to their test.
    """
    most = [1] * (len(parents) + 1)
    for node in range(len(parents), -1, -1):
        children = [place + 1 for place, parent in enumerate(parents) if parent + 1 == node]
        if children:
            most[node] = steps_of(len(children)) + max(most[child] for child in children)
    return most[0]
