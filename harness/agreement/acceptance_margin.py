"""How far accept decisions lie on the wrong side of their boundary, in units of the relative error of a probability.

A draft token passes iff u * denominator < numerator. A core that decided otherwise is explained by rounding when

    |u * denominator - numerator| <= ROUNDING * scale

with the scale the sum of all probabilities that enter, each times the number of ways it enters:

    probabilistic and others    u * q + p
    block, i < K                1 + P (1 + 4 i): Z enters with weight 1 - u, P with weight u and through Z,
                                P is a product of i ratios, Z a sum of differences of P p and q
    block, i = K                2 i P
    typical                     (p + threshold) * (1 + log V): the entropy is off by at most 1 + log V such errors
    fly                         u * q + p, and 1 + H for its entropy H; a token may pass in two ways, so that the
                                easier one counts, and is rejected where both fail

Shapes: R requests, K the largest number of draft tokens.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from kernels.contract import Streams, Verification, VerificationMethod
from kernels.reference.block import log_prefix_ratios
from kernels.reference.fly import is_possible, top_entropies
from kernels.reference.pr35461 import shared_uniforms
from kernels.reference.proposal import Proposal, leading
from kernels.reference.typical import entropies
from kernels.reference.verify import acceptance_odds
from kernels.streams import Purpose, uniform

Method = VerificationMethod


def accept_uniforms(proposal: Proposal, verification: Verification, streams: Streams) -> Tensor:
    """[R, K] float64, the number that decides about each draft token."""
    width = proposal.token_ids.shape[1]
    positions = streams.positions[:, None] + torch.arange(width, device=streams.positions.device)
    if verification.method is Method.pr35461:
        return shared_uniforms(streams, positions)
    return uniform(streams.seeds[:, None], Purpose.accept, positions, streams.rounds[:, None])


def _typical_excess(proposal: Proposal, verification: Verification) -> Tensor:
    """[R, K] float64, how far the threshold lies above the target probability; negative where the token passes."""
    target_probs = proposal.target_logprobs.exp()
    entropy = entropies(proposal.target)[proposal.rows[:, :-1]]
    threshold = (verification.delta * torch.exp(-entropy)).clamp(max=verification.epsilon)
    scale = (target_probs + threshold) * (1 + math.log(proposal.target.logits.shape[1]))
    # A certain row passes whatever the threshold; nothing is rounded there.
    return torch.where(target_probs == 1, -1.0, (threshold - target_probs) / scale)


def excess(proposal: Proposal, verification: Verification, streams: Streams) -> Tensor:
    """How far u * denominator lies above the numerator, over the scale.

    Returns:
        [R, K] float64; negative where the draft token passes.
    """
    if verification.method is Method.typical:
        return _typical_excess(proposal, verification)
    odds = acceptance_odds(proposal, verification)
    uniforms = accept_uniforms(proposal, verification, streams)
    scale = uniforms * odds.denominator + odds.numerator
    if verification.method is Method.block:
        ratios = log_prefix_ratios(proposal)[:, 1:].exp()
        index = torch.arange(1, ratios.shape[1] + 1, device=ratios.device)
        is_last = index == proposal.num_usable[:, None]
        scale = torch.where(is_last, 2 * index * ratios, 1 + ratios * (1 + 4 * index))
    return (uniforms * odds.denominator - odds.numerator) / scale.clamp(min=torch.finfo(torch.float64).tiny)


def _with_deferral(
    proposal: Proposal, verification: Verification, to_pass: Tensor, to_fail: Tensor
) -> tuple[Tensor, Tensor]:
    """[R, K] how much rounding it takes for a draft token to pass, and not to, where fly may defer it.

    Args:
        proposal: the round.
        verification: fly with its parameters.
        to_pass: [R, K] the same for passing natively.
        to_fail: [R, K] for failing natively.
    """
    entropies = top_entropies(proposal.target, verification.fly_entropy_top_k)[proposal.rows[:, :-1]]
    below = (verification.fly_entropy_threshold - entropies) / (1 + entropies)
    to_open = below.clamp(min=0.0).masked_fill(~is_possible(proposal), torch.inf)
    to_close = (-below).clamp(min=0.0).masked_fill(~is_possible(proposal), 0.0)
    # behind the last usable token nothing passes, and that takes no rounding
    window, width = verification.fly_window_size, to_pass.shape[1]
    behind_passes = torch.nn.functional.pad(
        to_pass.masked_fill(~proposal.usable, torch.inf), (0, window), value=math.inf
    )
    behind_fails = torch.nn.functional.pad(to_fail.masked_fill(~proposal.usable, 0.0), (0, window))
    fill = behind_passes.unfold(1, window + 1, 1)[:, :width, 1:].amax(dim=2)
    leave = behind_fails.unfold(1, window + 1, 1)[:, :width, 1:].amin(dim=2)
    return torch.minimum(to_pass, torch.maximum(to_open, fill)), torch.maximum(to_fail, torch.minimum(to_close, leave))


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
    if verification.method is Method.block:
        passed, failed = index == accepted - 1, index >= accepted
    else:
        passed, failed = leading(num_accepted, width), index == accepted
    over = excess(proposal, verification, streams)
    to_pass, to_fail = over.clamp(min=0.0), (-over).clamp(min=0.0)
    if verification.traits.defers:
        to_pass, to_fail = _with_deferral(proposal, verification, to_pass, to_fail)
    wrong = torch.where(passed, to_pass, torch.where(failed & proposal.usable, to_fail, 0.0))
    none = wrong.new_zeros(len(num_accepted), 1)
    largest = torch.cat([none, wrong], dim=1).amax(dim=1)
    return torch.where(num_accepted > proposal.num_usable, torch.inf, largest)
