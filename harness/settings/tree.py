"""Shapes of trees of drafts: their names, and lists of parents.

A tree is the parent of each draft token: its number, smaller than the token's own, or -1 for the children of the
context. Knows neither torch nor Hydra.
"""

from __future__ import annotations

import re
from itertools import pairwise
from math import prod

Tree = tuple[int, ...]
"""Parent of each draft token, -1 for the context."""
CHAIN = "chain"
FORMS = "chain, the number of children level by level such as 3-2-1, or a list of parents such as [-1,-1,0,0]"


def branching(*counts: int) -> Tree:
    """Every node of one depth has the same number of children; level by level."""
    parents: list[int] = []
    level = [-1]
    for count in counts:
        begin = len(parents)
        parents += [node for node in level for _ in range(count)]
        level = list(range(begin, len(parents)))
    return tuple(parents)


def depths_of(tree: Tree) -> tuple[int, ...]:
    """Depth of each draft token; 1 follows the context."""
    depths: list[int] = []
    for parent in tree:
        depths.append(1 + (depths[parent] if parent >= 0 else 0))
    return tuple(depths)


def tree_name(tree: Tree) -> str:
    """Children level by level where a tree is even, else its list of parents; equal for equal trees."""
    depths = depths_of(tree)
    counts = [depths.count(depth) for depth in range(1, max(depths) + 1)]
    if all(count % above == 0 for above, count in pairwise([1, *counts])):
        even = [count // above for above, count in pairwise([1, *counts])]
        if branching(*even) == tree:
            return "-".join(map(str, even))
    return f"[{','.join(map(str, tree))}]"


def read_tree(shape: str, num_speculative_tokens: int, max_tokens: int) -> Tree:
    """The tree that a setting names.

    Args:
        shape: one of FORMS.
        num_speculative_tokens: K, tokens of `chain`.
        max_tokens: draft tokens, at most.

    Raises:
        ValueError: it is none of FORMS, has no token or too many, or a parent does not come before its child.
    """
    text = shape.strip()
    counts = [1] * num_speculative_tokens if text == CHAIN else _counts(text)
    if counts is not None:
        size = sum(prod(counts[:depth]) for depth in range(1, len(counts) + 1))
        if not 1 <= size <= max_tokens:
            raise ValueError(f"expected a tree of 1 to {max_tokens} draft tokens, found {size} in {shape}")
        return branching(*counts)
    if not re.fullmatch(r"\[\s*-?\d+(\s*,\s*-?\d+)*\s*\]", text):
        raise ValueError(f"expected {FORMS}, found {shape!r}")
    parents = tuple(int(number) for number in text.strip("[]").split(","))
    for place, parent in enumerate(parents):
        if not -1 <= parent < place:
            raise ValueError(
                f"expected parents that come before their children, -1 for children of the context, found {parent} "
                f"for token {place} of {shape}"
            )
    if len(parents) > max_tokens:
        raise ValueError(f"expected a tree of 1 to {max_tokens} draft tokens, found {len(parents)} in {shape}")
    return parents


def is_chain(shape: str) -> bool:
    """Whether a shape is a chain: `chain`, or one child level by level."""
    return shape == CHAIN or set(_counts(shape) or [0]) == {1}


def _counts(text: str) -> list[int] | None:
    """Children level by level; None if the text is not of that form."""
    return [int(number) for number in text.split("-")] if re.fullmatch(r"[1-9]\d*(-[1-9]\d*)*", text) else None
