"""Probabilistic verification, lossless (Leviathan et al., arXiv 2211.17192; Chen et al., arXiv 2302.01318).

accept X_i iff u_i * q_i(X_i) < p_i(X_i); stop at the first failure and emit from [p_i - q_i]+
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .rule import FirstDrafts, FirstToken, Look, RecordedTerms, Rule
from .traits import OWN_NOISE, Guarantee, MethodTraits

if TYPE_CHECKING:
    from torch import Tensor

    from ..reference.odds import Odds
    from ..reference.proposal import Proposal
    from .hooks import Hooks


@dataclass(frozen=True)
class Probabilistic(Rule):
    traits = MethodTraits(
        Guarantee.lossless,
        draft_samplings=OWN_NOISE,
        reads_draft=True,
        is_strict_on_one_hot=True,
        expected_is_recorded=True,
    )
    look = Look("#D55E00", "^", "-.")
    mass = "overlap"

    @classmethod
    def hooks(cls) -> Hooks | None:
        from .probabilistic_device import HOOKS

        return HOOKS

    def odds(self, proposal: Proposal) -> Odds:
        from ..reference.odds import Odds

        return Odds(proposal.target_logprobs.exp(), proposal.draft_logprobs.exp())

    def recorded_odds(self, terms: RecordedTerms) -> tuple[Any, Any] | None:
        return terms.target_prob, terms.draft_prob

    def first_token(self, proposal: Proposal, drafts: FirstDrafts) -> FirstToken | Tensor | None:
        return kept_and_residual(drafts, leniency=1.0)


def kept_and_residual(drafts: FirstDrafts, leniency: float) -> FirstToken:
    """Of a rule that accepts X with probability min(1, p(X) / (l q(X))), and emits from [p - q]+."""
    import torch

    _, target, drawn, cached = drafts
    missing = (target - cached).clamp_(min=0.0)
    mass = missing.sum(dim=1, keepdim=True)
    after = torch.where(mass > 0, missing / torch.where(mass > 0, mass, 1.0), target)
    possible = cached > 0
    odds = target / torch.where(possible, leniency * cached, 1.0)
    kept = drawn * odds.clamp(max=1.0) * possible
    return FirstToken(kept, (drawn * ~possible).sum(dim=1, keepdim=True), after)
