"""Lookahead decoding: n-grams that the target's own Jacobi iterations left (Fu et al. 2024, arXiv 2402.02057).

No weights. Window and guesses are branches of the tree that the target reads in a round, so that both take part in one
forward, as in the paper, whose mask between them is that of this tree. Tokens of the window are verified as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.config.drafter import DrafterConfig, DrafterTraits
from harness.config.models import require
from harness.config.tree import DynamicTree

if TYPE_CHECKING:
    from harness.config.cell import CellConfig
    from harness.drafters.protocol import Drafter
    from harness.drafters.registry import DrafterSetup


@dataclass(frozen=True)
class Lookahead(DrafterConfig):
    window: int = 5
    """W, positions ahead that are guessed in parallel."""
    ngram: int = 3
    """N, tokens of an n-gram: N - 1 iterations of each position give one."""
    guesses: int = 5
    """G, n-grams after the last token that are tried in a round."""
    pool: int = 512
    """N-grams that are kept of a request, the latest ones."""
    traits = DrafterTraits(
        is_one_hot=True,
        drafts_trees=True,
        name="{kind} (W = {window}, N = {ngram}, G = {guesses})",
    )

    def __post_init__(self) -> None:
        require(self.window >= 1, "drafter.window", "1 or more positions", self.window)
        require(self.ngram >= 2, "drafter.ngram", "2 or more tokens", self.ngram)
        require(self.guesses >= 1, "drafter.guesses", "1 or more n-grams", self.guesses)
        least = max(self.window, self.guesses)
        require(self.pool >= least, "drafter.pool", f"{least} or more (drafter.window, drafter.guesses)", self.pool)

    @property
    def tree(self) -> DynamicTree:
        """The tree that its window and guesses are: (W + G) (N - 1) nodes at most, where no two begin alike."""
        branches = self.window + self.guesses
        return DynamicTree(branches * (self.ngram - 1), self.window + self.ngram - 2, branches)

    def refusal(self, cell: CellConfig) -> str | None:
        if cell.is_served or cell.drafting.tree_shape == self.tree:
            return None
        return (
            f"drafter=lookahead with drafter.window={self.window}, drafter.ngram={self.ngram} and drafter.guesses="
            f"{self.guesses} has the tree {self.tree.name}, which the target reads in one forward, found "
            f"drafting.tree={'null' if cell.drafting.tree is None else cell.drafting.tree}; use "
            f"drafting.tree={self.tree.name} and a verification of trees, such as recursive"
        )

    def build(self, setup: DrafterSetup) -> Drafter:
        from harness.drafters.dynamic_tree import DynamicTreeShape
        from harness.drafters.lookahead_run import LookaheadDrafter, Window

        assert isinstance(setup.tree, DynamicTreeShape), "other trees are refused"
        window = Window(self.window, self.ngram, self.guesses, self.pool)
        return LookaheadDrafter(window, setup.shape.num_slots, setup.tree, setup.target.device)
