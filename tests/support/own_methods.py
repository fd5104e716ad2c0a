"""Verification methods outside the package, named as a user would: method=tests.support.own_methods:NAME."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from kernels.methods import Guarantee, MethodTraits, OwnMethod, Rule
from kernels.reference import residual
from kernels.reference.odds import Odds
from kernels.reference.proposal import Proposal


class Half(Rule):
    """p(X) / 2; its emission is forgotten."""

    traits = MethodTraits(Guarantee.lossless)

    def odds(self, proposal: Proposal) -> Odds:
        return Odds(0.5 * proposal.target_logprobs.exp(), proposal.draft_logprobs.exp())


class HalfStrict(Half):
    """p with half the weight of the rejected token."""

    def emission(self, proposal: Proposal, num_accepted: Tensor) -> Tensor:
        weights = residual.emission(proposal, num_accepted, scale=None)
        rejects = (num_accepted < proposal.num_usable).nonzero()[:, 0]
        weights[rejects, proposal.token_ids[rejects, num_accepted[rejects]]] *= 0.5
        return weights


@dataclass(frozen=True)
class Generous(Rule):
    """1.3 p(X) / q(X)."""

    bonus: float = 1.3
    traits = MethodTraits(Guarantee.lossy, reads_draft=True)

    def odds(self, proposal: Proposal) -> Odds:
        return Odds(self.bonus * proposal.target_logprobs.exp(), proposal.draft_logprobs.exp())


class ToLastSuccess(Generous):
    traits = MethodTraits(Guarantee.lossy, reads_draft=True, stops_at_first_failure=False)


class Liar(Generous):
    traits = MethodTraits(Guarantee.lossless, reads_draft=True)


half_strict, lossy, liar, forgets_its_emission, mean = HalfStrict, Generous(), Liar, Half, Generous(1.05)
lossy_to_last_success = ToLastSuccess()
HALF_STRICT, LOSSY, LOSSY_TO_LAST_SUCCESS = map(OwnMethod, (HalfStrict(), lossy, lossy_to_last_success))
NUMBER = 7
