"""Shapes of trees of drafts: names, lists of parents, and what is read from a setting.

A tree is the parent of each draft token: its number, smaller than the token's own, or -1 for the children of the
context. Knows neither torch nor Hydra.
"""

from __future__ import annotations

import re

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


def read_tree(shape: str, num_speculative_tokens: int) -> Tree:
    """The tree that a setting names.

    Args:
        shape: one of FORMS.
        num_speculative_tokens: K, tokens of `chain`.

    Raises:
        ValueError: it is none of these forms, or a parent does not come before its child; says what was found.
    """
    text = shape.strip()
    if text == CHAIN:
        return branching(*[1] * num_speculative_tokens)
    if re.fullmatch(r"[1-9]\d*(-[1-9]\d*)*", text):
        return branching(*map(int, text.split("-")))
    if not re.fullmatch(r"\[\s*-?\d+(\s*,\s*-?\d+)*\s*\]", text):
        raise ValueError(f"expected {FORMS}, found {shape!r}")
    parents = tuple(int(number) for number in text.strip("[]").split(","))
    for place, parent in enumerate(parents):
        if not -1 <= parent < place:
            raise ValueError(
                f"expected parents that come before their children, -1 for children of the context, found {parent} "
                f"for token {place} of {shape}"
            )
    return parents
