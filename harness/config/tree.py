"""Shapes of trees of drafts: their names, lists of parents, and what bounds a dynamic tree.

A fixed tree is the parent of each draft token: its number, smaller than the token's own, or -1 for the children of the
context. Knows neither torch nor Hydra.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from math import prod

Tree = tuple[int, ...]
"""Parent of each draft token, -1 for the context."""
CHAIN = "chain"
DYNAMIC = "dynamic:"
FORMS = (
    "chain, the number of children level by level such as 3-2-1, a list of parents such as [-1,-1,0,0], or "
    "dynamic:NODES-DEPTH-WIDTH such as dynamic:16-5-4"
)


@dataclass(frozen=True)
class DynamicTree:
    """What bounds a tree whose nodes the drafter chooses in each round (kernels.tree.dynamic_shape)."""

    num_nodes: int
    """Draft tokens of a round at most."""
    depth: int
    """Of the deepest of them."""
    width: int
    """Nodes of a level whose children are looked at, and children of each."""

    def __post_init__(self) -> None:
        most = self.width + (self.depth - 1) * self.width**2
        if not (1 <= self.depth <= self.num_nodes and 1 <= self.width <= self.num_nodes <= most):
            raise ValueError(
                f"expected dynamic:NODES-DEPTH-WIDTH with DEPTH and WIDTH from 1 to NODES, and NODES at most WIDTH + "
                f"(DEPTH - 1) * WIDTH * WIDTH, which is what it chooses from, found {self.name}"
            )

    @property
    def name(self) -> str:
        return f"{DYNAMIC}{self.num_nodes}-{self.depth}-{self.width}"

    @property
    def num_read(self) -> int:
        """Nodes that a drafter with a network reads in a round."""
        return (self.depth - 1) * self.width


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


def most_children(tree: Tree) -> list[int]:
    """Children of the node of each depth that has most, from the context down to the deepest node with children."""
    depths, found = depths_of(tree), [0] * max(depths_of(tree))
    for node in (-1, *range(len(tree))):
        count = tree.count(node)
        if count:
            depth = depths[node] if node >= 0 else 0
            found[depth] = max(found[depth], count)
    return found


def tree_name(tree: Tree | DynamicTree) -> str:
    """Children level by level where a tree is even, else its list of parents; equal for equal trees."""
    if isinstance(tree, DynamicTree):
        return tree.name
    depths = depths_of(tree)
    counts = [depths.count(depth) for depth in range(1, max(depths) + 1)]
    if all(count % above == 0 for above, count in pairwise([1, *counts])):
        even = [count // above for above, count in pairwise([1, *counts])]
        if branching(*even) == tree:
            return "-".join(map(str, even))
    return f"[{','.join(map(str, tree))}]"


def num_nodes_of(tree: Tree | DynamicTree) -> int:
    """Draft tokens of a round, at most."""
    return tree.num_nodes if isinstance(tree, DynamicTree) else len(tree)


def read_shape(shape: str, num_speculative_tokens: int, max_tokens: int) -> Tree | DynamicTree:
    """The fixed tree that a setting names, or the bounds of a dynamic one.

    Args:
        shape: one of FORMS.
        num_speculative_tokens: K, tokens of `chain`.
        max_tokens: draft tokens, at most.

    Raises:
        ValueError: see `read_tree`; or a dynamic tree has too many nodes, or more than it can choose from.
    """
    text = shape.strip()
    if not is_dynamic(text):
        return read_tree(shape, num_speculative_tokens, max_tokens)
    sizes = _counts(text.removeprefix(DYNAMIC)) or []
    if len(sizes) != 3:
        raise ValueError(f"expected {FORMS}, found {shape!r}")
    dynamic = DynamicTree(*sizes)
    _check_size(dynamic.num_nodes, shape, max_tokens)
    return dynamic


def read_tree(shape: str, num_speculative_tokens: int, max_tokens: int) -> Tree:
    """The fixed tree that a setting names; arguments as of `read_shape`.

    Raises:
        ValueError: it is none of FORMS, has no token or too many, or a parent does not come before its child.
    """
    text = shape.strip()
    counts = [1] * num_speculative_tokens if text == CHAIN else _counts(text)
    if counts is not None:
        size = sum(prod(counts[:depth]) for depth in range(1, len(counts) + 1))
        if 0 in counts:
            raise ValueError(f"expected 1 or more children at every level, found 0 in {shape!r}; leave that level out")
        _check_size(size, shape, max_tokens)
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
    _check_size(len(parents), shape, max_tokens)
    return parents


def is_dynamic(shape: str) -> bool:
    """Whether a shape is a dynamic tree."""
    return shape.startswith(DYNAMIC)


def is_chain(shape: str) -> bool:
    """Whether a shape is a chain: `chain`, or one child level by level."""
    return shape == CHAIN or set(_counts(shape) or [0]) == {1}


def _check_size(size: int, shape: str, max_tokens: int) -> None:
    if not 1 <= size <= max_tokens:
        raise ValueError(f"expected a tree of 1 to {max_tokens} draft tokens, found {size} in {shape}")


def _counts(text: str) -> list[int] | None:
    """Children level by level; None if the text is not of that form."""
    return [int(number) for number in text.split("-")] if re.fullmatch(r"\d+(-\d+)*", text) else None
