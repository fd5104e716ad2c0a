"""K-SEQ of SpecTr, lossless for trees whose siblings are independent (Sun et al., arXiv 2310.15141, algorithm 3).

The walk and its formulas stand in kernels.reference.kseq.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .rule import Look, Rule, TreeHooks
from .table import VerificationMethod
from .traits import DraftSampling, Guarantee, MethodTraits, SiblingDraws

if TYPE_CHECKING:
    from ..contract import Draft, Streams
    from ..reference.tree_proposal import TreeProposal
    from ..reference.tree_walk import Passes, Walked


@dataclass(frozen=True)
class KSeq(Rule):
    traits = MethodTraits(
        Guarantee.lossless,
        (DraftSampling.sampled,),
        reads_draft=True,
        siblings=(SiblingDraws.independent,),
        on_chains=VerificationMethod.probabilistic,
    )
    look = Look("#6699CC", (3, 1, 0), "--")

    def check(self, draft: Draft) -> None:
        """Raises ValueError about siblings that are no independent draws of one row."""
        if draft.parents is None or draft.token_ids.shape[1] == 0:
            return
        if draft.siblings is SiblingDraws.distinct or draft.logits is None:
            found = "distinct ones" if draft.logits is not None else "drafts without logits"
            raise ValueError(f"kseq verifies siblings that are independent draws of cached logits, found {found}")

    @classmethod
    def tree_hooks(cls) -> TreeHooks | None:
        return TreeHooks(shares_discount=True)

    def walk(self, tree: TreeProposal, passes: Passes, streams: Streams) -> Walked:
        from ..reference.kseq import walk_by_kseq

        return walk_by_kseq(tree, passes)
