"""Verification methods outside the package, named as a user would: verification.method=tests.own_methods:NAME."""

from __future__ import annotations

from torch import Tensor

from kernels.methods import Guarantee, MethodTraits, OwnMethod
from kernels.reference import residual
from kernels.reference.odds import Odds
from kernels.reference.proposal import Proposal


def half_odds(proposal: Proposal) -> Odds:
    """p(X) / 2."""
    return Odds(0.5 * proposal.target_logprobs.exp(), proposal.draft_logprobs.exp())


def half_left(proposal: Proposal, num_accepted: Tensor) -> Tensor:
    """p with half the weight of the rejected token."""
    weights = residual.emission(proposal, num_accepted, scale=None)
    rejects = (num_accepted < proposal.num_usable).nonzero()[:, 0]
    weights[rejects, proposal.token_ids[rejects, num_accepted[rejects]]] *= 0.5
    return weights


def generous_odds(proposal: Proposal) -> Odds:
    """1.3 p(X) / q(X)."""
    return Odds(1.3 * proposal.target_logprobs.exp(), proposal.draft_logprobs.exp())


half_strict = OwnMethod(half_odds, MethodTraits(Guarantee.lossless), half_left)
lossy = OwnMethod(generous_odds, MethodTraits(Guarantee.lossy, reads_draft=True))
lossy_to_last_success = OwnMethod(
    generous_odds, MethodTraits(Guarantee.lossy, reads_draft=True, stops_at_first_failure=False)
)
liar = OwnMethod(generous_odds, MethodTraits(Guarantee.lossless, reads_draft=True))
forgets_its_emission = OwnMethod(half_odds, MethodTraits(Guarantee.lossless))
NUMBER = 7
