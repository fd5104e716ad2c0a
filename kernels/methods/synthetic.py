"""Synthetic acceptance, a benchmark device and not a sampler: accepts at given rates, whatever the tokens.

Chains: a_1 >= a_2 >= .. unconditional rates: accept position i with probability a_i / a_{i-1}, a_0 = 1.

Trees: at a node at depth d that the walk has reached, accept child r (0, 1, .. in the order of the draft) with
probability a_{d,r}, and stop with what is left of 1 (kernels.reference.synthetic_trees).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, Self

from .rule import FirstDrafts, FirstToken, Guarantee, MethodTraits, Rule, SiblingDraws, TreeHooks

if TYPE_CHECKING:
    from torch import Tensor

    from ..contract import Draft, Streams
    from ..reference.odds import Odds
    from ..reference.proposal import Proposal
    from ..reference.tree_proposal import TreeProposal
    from ..reference.tree_walk import Passes, Walked
    from .hooks import Hooks

ROUNDING = 1e-9
"""Slack for sums of rates."""


@dataclass(frozen=True)
class Synthetic(Rule):
    synthetic_rates: tuple[float, ...] = ()
    """Unconditional acceptance rate of each position of a chain, not increasing."""
    synthetic_tree_rates: tuple[tuple[float, ...], ...] = ()
    """Of a tree, for each depth the rates of a node's first child, second child and so on, given that the walk has
    reached the node; 0 at depths and children beyond. They exclude each other, so their sum is at most 1."""
    traits = MethodTraits(
        Guarantee.synthetic, emits_from_target=True, ignores_tokens=True, siblings=tuple(SiblingDraws)
    )
    further_settings = ("synthetic_length", "profile")

    def __post_init__(self) -> None:
        rates = self.synthetic_rates
        if any(not 0 <= rate <= 1 for rate in rates) or any(a < b for a, b in pairwise(rates)):
            raise ValueError(f"synthetic_rates must lie in [0, 1] and not increase, found {list(rates)}")
        for level in self.synthetic_tree_rates:
            if any(not 0 <= rate <= 1 for rate in level) or not level or sum(level) > 1 + ROUNDING:
                raise ValueError(
                    "synthetic_tree_rates must be, for each depth, rates in [0, 1] of a node's children whose sum is "
                    f"at most 1, found {list(level)}"
                )

    @property
    def tree_thresholds(self) -> list[list[float]]:
        """`synthetic_tree_rates` summed up over the children of a node, one row for each depth; a row with fewer
        children than another repeats its last sum."""
        width = max(map(len, self.synthetic_tree_rates), default=0)
        return [list(accumulate((*level, *(0.0,) * (width - len(level))))) for level in self.synthetic_tree_rates]

    def numbers(self) -> tuple[float, ...]:
        """The rates of chains; no operation verifies trees by those of trees."""
        return self.synthetic_rates

    @classmethod
    def of_numbers(cls, numbers: Sequence[float]) -> Self:
        return cls(tuple(numbers))

    @classmethod
    def probe(cls, num_draft_tokens: int) -> dict[str, Any]:
        rates = tuple(0.8**position for position in range(1, num_draft_tokens + 1))
        return {
            "synthetic_rates": rates,
            "synthetic_tree_rates": ((0.5, 0.2, 0.1), (0.2, 0.6)) * max(1, num_draft_tokens),
        }

    @classmethod
    def hooks(cls) -> Hooks | None:
        from .synthetic_device import HOOKS

        return HOOKS

    def values(self, width: int) -> tuple[float, ...]:
        """The rates from a_0 = 1 on."""
        return (1.0, *self.synthetic_rates, *(0.0,) * (width - len(self.synthetic_rates)))

    def check(self, draft: Draft) -> None:
        """Raises ValueError where a position has no rate."""
        found, width = len(self.synthetic_rates), draft.token_ids.shape[1]
        if draft.parents is None and found < width:
            raise ValueError(f"synthetic_rates must cover all {width} positions of the draft; found {found} rates")
        if draft.parents is not None and not self.synthetic_tree_rates:
            raise ValueError(
                "synthetic_tree_rates must have the rates of trees, where draft.parents make one; found none"
            )

    def odds(self, proposal: Proposal) -> Odds:
        """a_i : a_{i-1}."""
        import torch

        from ..reference.odds import Odds

        num_requests, width = proposal.token_ids.shape
        unconditional = (1.0, *self.synthetic_rates[:width])
        rates = torch.tensor(unconditional, dtype=torch.float64, device=proposal.rows.device)
        # A rate of 0 is followed by rates of 0 only: 0 : 1 instead of 0 : 0.
        before = torch.where(rates[:-1] > 0, rates[:-1], 1.0)
        return Odds(rates[1:].expand(num_requests, width), before.expand(num_requests, width))

    @classmethod
    def tree_hooks(cls) -> TreeHooks | None:
        return TreeHooks(ignores_tokens=True)

    def walk(self, tree: TreeProposal, passes: Passes, streams: Streams) -> Walked:
        from ..reference.synthetic_trees import walk_synthetically

        return walk_synthetically(tree, self.tree_thresholds, streams)

    def first_token(self, proposal: Proposal, drafts: FirstDrafts) -> FirstToken | Tensor | None:
        import torch

        _, target, drawn, _ = drafts
        return FirstToken(drawn * self.synthetic_rates[0], torch.zeros_like(target[:, :1]), target)
