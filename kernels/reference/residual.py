"""The residual: what is left of the target's mass where the draft's does not cover it.

    weights(x) = [scale * p_i(x) - q_i(x)]+           one-hot proposals: scale * p_i(x) with X_i removed

The same weights serve two ends: a recovered token is drawn from them, and block verification needs their sum.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .proposal import Proposal, on_target_vocab


def residual(proposal: Proposal, requests: Tensor, positions: Tensor, scale: Tensor) -> Tensor:
    """Unnormalised residual weights at chosen places of the batch.

    Args:
        proposal: the round.
        requests: [n] int64.
        positions: [n] int64, i - 1 for the distributions p_i and q_i; each below K_r.
        scale: [n] float64, factor of the target's distribution; 1 but for block verification.

    Returns:
        [n, V] float64, not negative; the sum of a row may be 0.
    """
    weights = proposal.target.probs(proposal.rows[requests, positions])
    weights *= scale[:, None]
    one_hot = proposal.one_hot[requests]
    if bool(one_hot.any()):
        index = one_hot.nonzero()[:, 0]
        weights[index, proposal.token_ids[requests[index], positions[index]]] = 0.0
    if proposal.draft is not None and not bool(one_hot.all()):
        index = (~one_hot).nonzero()[:, 0]
        covered = proposal.draft.probs(proposal.draft_rows[requests[index], positions[index]])
        covered = on_target_vocab(covered, proposal.draft_to_target, weights.shape[1])
        if len(index) == len(requests):
            weights -= covered
        else:
            weights[index] -= covered
    return weights.clamp_(min=0.0)


def emission(proposal: Proposal, num_accepted: Tensor, scale: Tensor | None) -> Tensor:
    """Weights of the token that follows the accepted ones.

    Args:
        proposal: the round.
        num_accepted: [R] int64.
        scale: [R] float64, the residual's factor of the target's distribution; None when the rule always emits
            from the target.

    Returns:
        [R, V] float64, each row with a positive sum: the residual after a rejection, the target's distribution after
        the last usable draft token, and also where rounding left the residual without mass.
    """
    requests = torch.arange(len(num_accepted), device=num_accepted.device)
    rejected = num_accepted < proposal.num_usable
    if scale is None or not bool(rejected.any()):
        return proposal.target.probs(proposal.rows[requests, num_accepted])
    chosen = requests[rejected]
    recovered = residual(proposal, chosen, num_accepted[chosen], scale[chosen])
    is_left = rejected.index_put((chosen,), recovered.sum(dim=1) != 0)
    if bool(is_left.all()):
        return recovered
    others = requests[~is_left]
    weights = recovered.new_empty(len(num_accepted), recovered.shape[1]).index_copy_(0, chosen, recovered)
    return weights.index_copy_(0, others, proposal.target.probs(proposal.rows[others, num_accepted[others]]))
