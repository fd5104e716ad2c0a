"""Lenient verification, lossy (Leviathan et al., arXiv 2211.17192, appendix A.5): probabilistic with a discount.

accept X_i iff u_i * l * q_i(X_i) < p_i(X_i); stop at the first failure and emit from [p_i - q_i]+
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .probabilistic import kept_and_residual
from .rule import FirstDrafts, FirstToken, Look, RecordedTerms, Rule
from .traits import OWN_NOISE, Guarantee, MethodTraits

if TYPE_CHECKING:
    from torch import Tensor

    from ..reference.odds import Odds
    from ..reference.proposal import Proposal
    from .hooks import Hooks


@dataclass(frozen=True)
class Lenient(Rule):
    leniency: float = 1.0
    """l in (0, 1]; 1 is probabilistic."""
    probe_words = "l = 0.7"
    traits = MethodTraits(Guarantee.lossy, draft_samplings=OWN_NOISE, reads_draft=True)
    look = Look("#882255", "P", (0, (1, 1)))

    def __post_init__(self) -> None:
        if not 0 < self.leniency <= 1:
            raise ValueError(f"leniency must lie in (0, 1], found {self.leniency}")

    @classmethod
    def probe(cls, num_draft_tokens: int) -> dict[str, Any]:
        return {"leniency": 0.7}

    @classmethod
    def hooks(cls) -> Hooks | None:
        from .lenient_device import HOOKS

        return HOOKS

    def odds(self, proposal: Proposal) -> Odds:
        from ..reference.odds import Odds

        return Odds(proposal.target_logprobs.exp(), proposal.draft_logprobs.exp() * self.leniency)

    def recorded_odds(self, terms: RecordedTerms) -> tuple[Any, Any] | None:
        return terms.target_prob, self.leniency * terms.draft_prob

    def first_token(self, proposal: Proposal, drafts: FirstDrafts) -> FirstToken | Tensor | None:
        return kept_and_residual(drafts, self.leniency)
