"""Block verification with one known mistake, for the controls; each was found in public code or is easy to make.

Built from the reference's own pieces, so that nothing else differs from the right rule (kernels.reference.block).
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

import torch
from torch import Tensor

from kernels.contract import Draft, Sampling, Streams, Verification, VerificationResult
from kernels.reference.block import block_odds, log_prefix_ratios
from kernels.reference.choose import choose
from kernels.reference.odds import Odds, up_to_first_failure, up_to_last_success
from kernels.reference.proposal import Proposal, propose
from kernels.reference.residual import emission
from kernels.reference.verdict import assemble
from kernels.streams import Purpose, uniform


class Mistake(Enum):
    """What is wrong."""

    unscaled_residual = "the residual is not scaled by P_A"
    first_failure = "stops at the first failure"
    bare_product = "accepts with P_i instead of h_i"
    same_accepts = "accept uniforms of a position are the same in every round"
    depth_of_batch = "takes the batch's K for the request's own"


def _odds(proposal: Proposal, log_ratios: Tensor, mistake: Mistake) -> Odds:
    right = block_odds(proposal, log_ratios)
    ratios = log_ratios[:, 1:].exp()
    if mistake is Mistake.bare_product:
        return Odds(ratios, torch.ones_like(ratios))
    if mistake is Mistake.depth_of_batch:
        # h_i of a position that is not the last, although nothing follows: Z = 0.
        ends_early = torch.arange(1, ratios.shape[1] + 1, device=ratios.device) == proposal.num_usable[:, None]
        ends_early[:, -1] = False
        settled = (ratios == 1) | ~ends_early
        return Odds(torch.where(settled, right.numerator, 0.0), right.denominator)
    return right


def broken_verify(mistake: Mistake) -> Callable[[Tensor, Draft, Sampling, Verification, Streams], VerificationResult]:
    """A `verify` with this mistake: block, at temperatures above 0, in packed rows without padded slots."""

    def verify(
        target_logits: Tensor, draft: Draft, sampling: Sampling, verification: Verification, streams: Streams
    ) -> VerificationResult:
        proposal = propose(target_logits, draft, sampling, reads_draft=True)
        log_ratios = log_prefix_ratios(proposal)
        positions = streams.positions[:, None] + torch.arange(draft.token_ids.shape[1], device=target_logits.device)
        rounds = torch.zeros_like(streams.rounds) if mistake is Mistake.same_accepts else streams.rounds
        uniforms = uniform(streams.seeds[:, None], Purpose.accept, positions, rounds[:, None])
        passes = _odds(proposal, log_ratios, mistake).passes(uniforms)
        count = up_to_first_failure if mistake is Mistake.first_failure else up_to_last_success
        num_accepted = count(passes, proposal)
        scale = log_ratios.gather(1, num_accepted[:, None])[:, 0].exp()
        if mistake is Mistake.unscaled_residual:
            scale = torch.ones_like(scale)
        recovers = num_accepted < proposal.num_draft_tokens
        purposes = torch.where(recovers, int(Purpose.residual), int(Purpose.bonus))
        uniforms = uniform(streams.seeds, purposes, streams.positions + num_accepted, streams.rounds)
        tokens = choose(emission(proposal, num_accepted, scale), uniforms)
        invalid = (num_accepted == proposal.num_usable) & proposal.impossible
        return assemble(proposal.token_ids, num_accepted, tokens, invalid)

    return verify
