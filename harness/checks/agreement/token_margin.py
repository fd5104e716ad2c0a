"""How far a drawn token lies from the token that its uniform number chooses, in units of a probability's error.

Inversion gives token t iff cumulative(t - 1) <= u * total < cumulative(t). Both sides are sums of weights whose errors
add up to at most ROUNDING times the mass that entered: the total itself, and P + 1 for a residual [P p - q]+, which is
a difference of a mass P and a mass 1. So a token is explained when u * total lies within 2 * ROUNDING of that mass of
the token's interval, and the token can have a weight at all.

Shapes: N rows, R requests, V the vocabulary at hand.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.contract import Streams, Verification
from kernels.random.streams import Purpose, gumbel, uniform
from kernels.reference.proposal import Proposal, to_draft_ids
from kernels.reference.verify import rule_of


def interval_distance(weights: Tensor, uniforms: Tensor, token_ids: Tensor) -> Tensor:
    """Distance of u * total from the interval of a token in the cumulative weights.

    Args:
        weights: [N, V] float64.
        uniforms: [N] float64.
        token_ids: [N] int64 in [0, V).

    Returns:
        [N] float64, in units of the weights; 0 inside the interval.
    """
    cumulative = weights.cumsum(dim=1)
    upper = cumulative.gather(1, token_ids[:, None])[:, 0]
    lower = upper - weights.gather(1, token_ids[:, None])[:, 0]
    value = uniforms * cumulative[:, -1]
    return torch.maximum(lower - value, value - upper).clamp(min=0.0)


def _residual_parts(
    proposal: Proposal, verification: Verification, num_accepted: Tensor, token_ids: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """([R] P p(t), [R] q(t), [R] P) of the token after the accepted ones, where that is drawn from [P p - q]+.

    q is 0 where the token does not come from such a difference: no rejection, one-hot proposals, rules that emit from
    the target.
    """
    requests = torch.arange(len(num_accepted), device=num_accepted.device)
    ratio = rule_of(verification).scale(proposal, num_accepted)
    target = ratio * proposal.target.logprobs_at(proposal.rows[requests, num_accepted], token_ids).exp()
    proposed = torch.zeros_like(target)
    compares = proposal.draft is not None and not verification.traits.emits_from_target
    index = ((num_accepted < proposal.num_usable) & ~proposal.one_hot).nonzero()[:, 0]
    if compares and proposal.draft is not None and len(index):
        num_draft = proposal.draft.logits.shape[1]
        ids = to_draft_ids(token_ids[index], proposal.draft_to_target, proposal.target.logits.shape[1], num_draft)
        rows = proposal.draft_rows[index, num_accepted[index]]
        known = proposal.draft.logprobs_at(rows, ids.clamp(min=0)).exp()
        proposed[index] = torch.where(ids < 0, 0.0, known)
    return target, proposed, ratio


def token_margin(
    proposal: Proposal, verification: Verification, streams: Streams, num_accepted: Tensor, token_ids: Tensor
) -> Tensor:
    """How far the token after the accepted ones lies from the one that its random numbers choose.

    Args:
        proposal: the round, in float64.
        verification: a method that decides by odds: any but coupled and greedy.
        streams: fields [R].
        num_accepted: [R] int64, at most `proposal.num_usable`.
        token_ids: [R] int64, the token after them, in [0, V).

    Returns:
        [R] float64; 0 where float64 chooses the same token, infinity where the token cannot be drawn at all.
    """
    weights = rule_of(verification).emission(proposal, num_accepted)
    positions = streams.positions + num_accepted
    target, proposed, ratio = _residual_parts(proposal, verification, num_accepted, token_ids)
    own = weights.gather(1, token_ids[:, None])[:, 0]
    # float32 may leave a residual weight where float64 leaves none, but only where the two nearly cancel.
    cancels = ((proposed - target) / (proposed + target)).nan_to_num(nan=torch.inf)
    impossible = torch.where(own > 0, 0.0, torch.where((proposed > 0) & (target > 0), cancels, torch.inf))
    if verification.traits.decided_by_noise:
        return torch.maximum(_noise_margin(weights, streams, positions, token_ids, proposed), impossible)
    recovers = num_accepted < proposal.num_draft_tokens
    purposes = torch.where(recovers, int(Purpose.residual), int(Purpose.bonus))
    uniforms = uniform(streams.seeds, purposes, positions, streams.rounds)
    entered = torch.where(proposed > 0, ratio + 1, weights.sum(dim=1))
    return torch.maximum(interval_distance(weights, uniforms, token_ids) / (2 * entered), impossible)


def _noise_margin(weights: Tensor, streams: Streams, positions: Tensor, token_ids: Tensor, proposed: Tensor) -> Tensor:
    """[R] gap between the best of log weight + noise and that of the token found, over the errors that enter it.

    A weight [p - q]+ has (p + q) / (p - q) = 1 + 2 q / (p - q) times the relative error of a probability; the noise, a
    double logarithm, about as much as one. The weight of the best token is bounded by the same factor.
    """
    scores = weights.log() + gumbel(streams.seeds, positions, weights.shape[1])
    own = weights.gather(1, token_ids[:, None])[:, 0]
    gap = scores.amax(dim=1) - scores.gather(1, token_ids[:, None])[:, 0]
    return (gap / (2 * (2 + 2 * proposed / own))).nan_to_num(nan=torch.inf, posinf=torch.inf)
