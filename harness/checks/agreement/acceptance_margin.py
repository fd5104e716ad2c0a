"""How far accept decisions lie on the wrong side of their boundary, in units of the relative error of a probability.

A draft token passes iff u * denominator < numerator. A core that decided otherwise is explained by rounding when

    |u * denominator - numerator| <= ROUNDING * scale

with the scale the sum of all probabilities that enter, each times the number of ways it enters: u * q + p, unless a
rule has another one (kernels.methods.rule.Rule.excess).

Shapes: R requests, K the largest number of draft tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.contract import Streams, Verification
from kernels.reference.proposal import Proposal, leading
from kernels.reference.verify import rule_of


def excess(proposal: Proposal, verification: Verification, streams: Streams) -> Tensor:
    """How far u * denominator lies above the numerator, over the scale.

    Returns:
        [R, K] float64; negative where the draft token passes.
    """
    rule, width = rule_of(verification), proposal.token_ids.shape[1]
    positions = streams.positions[:, None] + torch.arange(width, device=streams.positions.device)
    return rule.excess(proposal, rule.uniforms(streams, positions))


def acceptance_margin(proposal: Proposal, verification: Verification, streams: Streams, num_accepted: Tensor) -> Tensor:
    """How far the decisions that lead to a number of accepted tokens lie on the wrong side.

    Args:
        proposal: the round, in float64.
        verification: a method that decides by odds: any but coupled and greedy.
        streams: fields [R].
        num_accepted: [R] int64, what a core found.

    Returns:
        [R] float64; 0 where every decision agrees with float64, infinity where more tokens were accepted than can be.
    """
    width = proposal.token_ids.shape[1]
    accepted = num_accepted[:, None]
    index = torch.arange(width, device=accepted.device)
    if not verification.traits.stops_at_first_failure:
        passed, failed = index == accepted - 1, index >= accepted
    else:
        passed, failed = leading(num_accepted, width), index == accepted
    over = excess(proposal, verification, streams)
    to_pass, to_fail = over.clamp(min=0.0), (-over).clamp(min=0.0)
    to_pass, to_fail = rule_of(verification).with_revision(to_pass, to_fail, proposal)
    wrong = torch.where(passed, to_pass, torch.where(failed & proposal.usable, to_fail, 0.0))
    none = wrong.new_zeros(len(num_accepted), 1)
    largest = torch.cat([none, wrong], dim=1).amax(dim=1)
    return torch.where(num_accepted > proposal.num_usable, torch.inf, largest)
