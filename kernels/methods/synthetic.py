"""Synthetic acceptance, a benchmark device and not a sampler: accepts at given rates, whatever the tokens.

Chains: a_1 >= a_2 >= .. unconditional rates: accept position i with probability a_i / a_{i-1}, a_0 = 1.

Trees: at a node at depth d that the walk has reached, accept child r (0, 1, .. in the order of the draft) with
probability a_{d,r}, and stop with what is left of 1 (kernels.reference.synthetic_trees).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, Self

from .acceptance_profiles import AcceptanceProfile
from .rule import FirstDrafts, FirstToken, Look, Rule, TreeHooks
from .traits import Guarantee, MethodTraits, SiblingDraws

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
SOURCES = "verification.rates, length, profile (of trees: tree_rates, profile)"
"""Of rates."""


@dataclass(frozen=True)
class Synthetic(Rule):
    """One source of rates: chains take `rates`, `length` or a profile of chains, trees `tree_rates` or a profile of
    trees; the core takes `rates` and `tree_rates` alone, which `at` gives."""

    rates: tuple[float, ...] = ()
    """Unconditional acceptance rate of each of the first positions of a chain, not increasing; 0 at the others, and the
    first K where there are more, so that one list serves a sweep over K."""
    tree_rates: tuple[tuple[float, ...], ...] = ()
    """With drafting.tree: for each depth the rates of a node's first, second and further children, given that the walk
    has reached the node; at most 1 together, and 0 for depths and children beyond. What is left of 1, the rates of
    children that a node lacks among it, ends the draft there."""
    length: float | None = None
    """Mean acceptance length L <= K + 1, instead of rates: [1] * floor(L - 1) + [fraction] + zeros."""
    profile: AcceptanceProfile | None = None
    """Named rates of K positions, or of trees, instead of rates (sources: kernels/methods/acceptance_profiles.py)."""
    traits = MethodTraits(
        Guarantee.synthetic, emits_from_target=True, ignores_tokens=True, siblings=tuple(SiblingDraws)
    )
    look = Look("#666666", "*", (0, (3, 1, 1, 1)))

    def __post_init__(self) -> None:
        rates = self.rates
        if any(not 0 <= rate <= 1 for rate in rates) or any(a < b for a, b in pairwise(rates)):
            raise ValueError(f"rates must lie in [0, 1] and not increase, found {list(rates)}")
        for level in self.tree_rates:
            if any(not 0 <= rate <= 1 for rate in level) or not level or sum(level) > 1 + ROUNDING:
                raise ValueError(
                    "tree_rates must be, for each depth, rates in [0, 1] of a node's children whose sum is "
                    f"at most 1, found {list(level)}"
                )
        if self.length is not None and not 1 <= self.length < math.inf:
            raise ValueError(f"length must be 1 or more, up to K + 1, found {self.length}")
        of_profile = () if self.profile is None else ("profile",)
        of_chains = self._given("rates", "length") + (of_profile if self.profile_rates else ())
        of_trees = self._given("tree_rates") + (of_profile if self.profile_tree_rates else ())
        # chains and trees of one sweep may have rates each
        if len(of_chains) > 1 or len(of_trees) > 1:
            found = (*self._given("rates", "length", "tree_rates"), *of_profile)
            raise ValueError(
                f"{SOURCES}: expected one of them, found {', '.join(found)}; clear the others, of which "
                "verification=synthetic sets both lists (verification.rates=[], tree_rates=[], length=null, "
                "profile=null)"
            )

    def _given(self, *names: str) -> tuple[str, ...]:
        return tuple(name for name in names if getattr(self, name) not in ((), None))

    @property
    def profile_rates(self) -> tuple[float, ...]:
        """Of chains, of its profile."""
        return () if self.profile is None else self.profile.rates

    @property
    def profile_tree_rates(self) -> tuple[tuple[float, ...], ...]:
        """Of trees, of its profile."""
        return () if self.profile is None else self.profile.tree_rates

    def at(self, num_draft_tokens: int) -> Self:
        rates = self.profile_rates or self.rates
        if self.length is not None:
            accepted = self.length - 1
            rates = tuple(min(1.0, max(0.0, accepted - position)) for position in range(num_draft_tokens))
        rates = (*rates, *(0.0,) * num_draft_tokens)[:num_draft_tokens]
        return replace(
            self, rates=rates, tree_rates=self.profile_tree_rates or self.tree_rates, length=None, profile=None
        )

    def refusal(self, num_draft_tokens: int, levels: Sequence[int] | None) -> str | None:
        if self.profile is not None and bool(self.profile_tree_rates) is not (levels is not None):
            found = "found a chain" if levels is None else "found a tree"
            return (
                f"verification.profile={self.profile.value} holds for trees or for chains alone, {found} "
                "(drafting.tree); choose another profile, or null and rates"
            )
        return self._refused_chain(num_draft_tokens) if levels is None else self._refused_tree(levels)

    def _refused_chain(self, num_draft_tokens: int) -> str | None:
        if not (self.rates or self.profile_rates or self.length is not None):
            found = "rates of trees and drafting.tree=null" if self.tree_rates else "none"
            or_tree = ", or set drafting.tree (chain: K tokens in a row)" if self.tree_rates else ""
            return (
                f"expected rates of chains, found {found}; give verification.rates, length or a profile of "
                f"chains{or_tree}"
            )
        if self.length is not None and self.length > num_draft_tokens + 1:
            return (
                f"verification.length={self.length} is out of reach: a round emits at most K + 1 tokens; lower it or "
                f"raise drafting.num_speculative_tokens={num_draft_tokens}"
            )
        if self.profile is not None and self.profile.num_speculative_tokens != num_draft_tokens:
            return (
                f"verification.profile={self.profile.value} holds for drafting.num_speculative_tokens="
                f"{self.profile.num_speculative_tokens} alone, because the rate of a position depends on it, found "
                f"{num_draft_tokens}; or give verification.rates"
            )
        return None

    def _refused_tree(self, levels: Sequence[int]) -> str | None:
        rates = self.profile_tree_rates
        if not (self.tree_rates or rates):
            return (
                "expected rates of trees for the trees of drafting.tree, found those of chains; give "
                "verification.tree_rates, or a profile of trees"
            )
        if rates and (len(levels) > len(rates) or any(n > len(level) for n, level in zip(levels, rates, strict=False))):
            assert self.profile is not None
            return (
                f"verification.profile={self.profile.value} has rates of fewer depths or children than the tree of "
                "drafting.tree has; use a smaller tree, or give verification.tree_rates"
            )
        return None

    def unused(self, is_tree: bool) -> Mapping[str, str]:
        if is_tree:
            words = "without drafting.tree, for which there is verification.tree_rates"
            return dict.fromkeys(("rates", "length"), words)
        return {"tree_rates": "with drafting.tree, such as drafting.tree=2-2"}

    def for_drafts(self, num_draft_tokens: int, is_tree: bool) -> Self:
        """Of rates of chains the first K count."""
        found = super().for_drafts(num_draft_tokens, is_tree)
        return replace(found, rates=found.rates[:num_draft_tokens])

    def recorded(self) -> dict[str, Any]:
        """A profile beside the rates that it stands for."""
        if self.profile is None:
            return self.parameters
        return self.parameters | {"rates": self.profile_rates, "tree_rates": self.profile_tree_rates}

    @classmethod
    def of_recorded(cls, parameters: Mapping[str, Any]) -> Self:
        if parameters.get("profile") is None:
            return cls(**parameters)
        return cls(profile=parameters["profile"])

    @property
    def tree_thresholds(self) -> list[list[float]]:
        """`tree_rates` summed up over the children of a node, one row for each depth; a row with fewer
        children than another repeats its last sum."""
        width = max(map(len, self.tree_rates), default=0)
        return [list(accumulate((*level, *(0.0,) * (width - len(level))))) for level in self.tree_rates]

    def numbers(self) -> tuple[float, ...]:
        """The rates of chains; no operation verifies trees by those of trees."""
        return self.rates

    @classmethod
    def of_numbers(cls, numbers: Sequence[float]) -> Self:
        return cls(tuple(numbers))

    @classmethod
    def probe(cls, num_draft_tokens: int) -> dict[str, Any]:
        rates = tuple(0.8**position for position in range(1, num_draft_tokens + 1))
        return {"rates": rates, "tree_rates": ((0.5, 0.2, 0.1), (0.2, 0.6)) * max(1, num_draft_tokens)}

    @classmethod
    def hooks(cls) -> Hooks | None:
        from .synthetic_device import HOOKS

        return HOOKS

    def values(self, width: int) -> tuple[float, ...]:
        """The rates from a_0 = 1 on."""
        return (1.0, *self.rates, *(0.0,) * (width - len(self.rates)))

    def check(self, draft: Draft) -> None:
        """Raises ValueError where a position has no rate."""
        found, width = len(self.rates), draft.token_ids.shape[1]
        if draft.parents is None and found < width:
            raise ValueError(f"rates must cover all {width} positions of the draft; found {found} rates")
        if draft.parents is not None and not self.tree_rates:
            raise ValueError("tree_rates must have the rates of trees, where draft.parents make one; found none")

    def odds(self, proposal: Proposal) -> Odds:
        """a_i : a_{i-1}."""
        import torch

        from ..reference.odds import Odds

        num_requests, width = proposal.token_ids.shape
        unconditional = (1.0, *self.rates[:width])
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
        return FirstToken(drawn * self.rates[0], torch.zeros_like(target[:, :1]), target)
