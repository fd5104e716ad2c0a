"""Traversal verification, lossless for trees (arXiv 2505.12398, algorithm 2).

The walk and its formulas stand in kernels.reference.traversal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .rule import Look, Rule, TreeHooks
from .table import VerificationMethod
from .traits import OWN_NOISE, Guarantee, MethodTraits, SiblingDraws

if TYPE_CHECKING:
    from ..contract import Streams
    from ..reference.tree_proposal import TreeProposal
    from ..reference.tree_walk import Passes, Walked


@dataclass(frozen=True)
class Traversal(Rule):
    traits = MethodTraits(
        Guarantee.lossless,
        OWN_NOISE,
        reads_draft=True,
        stops_at_first_failure=False,
        is_strict_on_one_hot=True,
        siblings=tuple(SiblingDraws),
        on_chains=VerificationMethod.block,
    )
    look = Look("#4D9221", (6, 1, 0), (0, (5, 1, 1, 1)))

    @classmethod
    def tree_hooks(cls) -> TreeHooks | None:
        return TreeHooks(leaves_first=True)

    def walk(self, tree: TreeProposal, passes: Passes, streams: Streams) -> Walked:
        from ..reference.traversal import walk_by_traversal

        return walk_by_traversal(tree, passes)
