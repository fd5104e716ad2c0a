"""Recursive rejection, lossless for trees (SpecInfer, arXiv 2305.09781; distinct siblings: Sequoia, arXiv 2402.12374).

The walk and its formulas stand in kernels.reference.recursive.
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
class Recursive(Rule):
    traits = MethodTraits(
        Guarantee.lossless,
        OWN_NOISE,
        reads_draft=True,
        is_strict_on_one_hot=True,
        siblings=tuple(SiblingDraws),
        on_chains=VerificationMethod.probabilistic,
    )
    look = Look("#661100", (5, 1, 0), "-")

    @classmethod
    def tree_hooks(cls) -> TreeHooks | None:
        return TreeHooks()

    def walk(self, tree: TreeProposal, passes: Passes, streams: Streams) -> Walked:
        from ..reference.recursive import walk_recursively

        return walk_recursively(tree, passes)
