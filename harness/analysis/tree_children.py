"""Acceptance of the children of a node, by depth and place among its siblings: of trees of a fixed shape.

Of a dynamic tree a record holds the accepted nodes and not the others, so that nothing is known of their siblings.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np

from harness.analysis.cell import CellResult
from harness.analysis.estimates import Estimate, Estimates
from harness.analysis.metric import rate
from harness.analysis.sums import CellSums
from harness.config.tree import Tree, is_chain, is_dynamic, read_tree
from harness.records.counts import Knowledge

DEFINITION = (
    "rounds that accepted the child / rounds that came to its parent, where its depth counts as evidence; that is how "
    "often a walk at a node of one depth goes on to its first child, its second one and so on, where it has that child"
)
CHILD_RATE = rate("acceptance of the child (%)", DEFINITION, "num_accepted", "num_walks")


class ChildRate(NamedTuple):
    """Of the children of one place among their siblings, at one depth."""

    depth: int
    """1 follows the context."""
    child: int
    """1 is a node's first child."""
    num_walks: int
    """Rounds that came to a node with such a child."""
    estimate: Estimate
    """CHILD_RATE."""


def child_rates(cell: CellResult) -> list[ChildRate]:
    """By depth and child; empty for chains, dynamic trees and cells whose rounds are not known."""
    name = cell["tree"]
    if not name or is_chain(name) or is_dynamic(name) or cell.record.knowledge is not Knowledge.rounds:
        return []
    shape = read_tree(name, 0, int(cell["num_speculative_tokens"]))
    counts = _counts(cell, shape)
    prompts = sorted({request.prompt_id for request in cell.record.requests})
    estimates = cell.estimates
    found = []
    for depth, child in sorted({place for _, place, _ in counts}):
        walks, accepted = (
            np.array([counts[prompt, (depth, child), is_taken] for prompt in prompts], dtype=np.float64)
            for is_taken in (False, True)
        )
        sums = CellSums(tuple(prompts), {"num_walks": walks, "num_accepted": accepted}, {}, 0)
        here = Estimates(sums, estimates.num_resamples, estimates.confidence)
        found.append(ChildRate(depth, child, int(walks.sum()), here.with_interval(*here.ratio(CHILD_RATE))))
    return found


def _counts(cell: CellResult, shape: Tree) -> Counter[tuple[str, tuple[int, int], bool]]:
    """(prompt, (depth, child), False) -> walks that came to the parent; with True -> those that accepted the child."""
    children = {node: [place for place, parent in enumerate(shape) if parent == node] for node in range(-1, len(shape))}
    counts: Counter[tuple[str, tuple[int, int], bool]] = Counter()
    for request in cell.record.requests:
        for item in request.rounds:
            path = (-1, *(item.path or ()))
            for depth in range(1, min(item.num_accepted_tokens + 1, item.num_positions) + 1):
                taken = path[depth] if depth <= item.num_accepted_tokens else None
                for number, place in enumerate(children[path[depth - 1]], 1):
                    counts[request.prompt_id, (depth, number), False] += 1
                    counts[request.prompt_id, (depth, number), True] += place == taken
    return counts
