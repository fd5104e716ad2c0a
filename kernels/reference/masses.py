"""Probabilities of acceptance that need whole rows: before a draft token is drawn, and with shared noise.

Shapes: R requests, K the largest number of draft tokens of a request, V the target's vocabulary, N rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from ..methods.block import log_prefix_ratios
from .proposal import Proposal, on_target_vocab
from .truncation import rows_per_chunk

NUM_COPIES = 12
"""Copies of a row, in float64 or int64, that are alive at once while it is sorted and summed up."""
MIN_PLACES = 16
"""Pairs of rows computed in full at a time, at least."""


class Masses(NamedTuple):
    """[R, K] float64 each; without a meaning where there is no usable draft token."""

    overlap: Tensor
    """sum_x min(p_i(x), q_i(x))."""
    strict_mass: Tensor
    """sum_x p_i(x) q_i(x)."""
    coupled_mass: Tensor
    """See `coupled_overlap`."""
    coupled_prob: Tensor
    """See `coupled_agreement`."""
    block_overlap: Tensor
    """sum_x min(P_{i-1} p_i(x), q_i(x)), with P of block verification."""


def masses(proposal: Proposal) -> Masses:
    """The masses of the usable draft tokens. With a one-hot proposal each is p_i(X_i), block's with P_{i-1} before it.

    Args:
        proposal: the round.
    """
    target_prob = proposal.target_logprobs.exp()
    prefix_ratios = log_prefix_ratios(proposal)[:, :-1].exp()
    found = Masses(
        overlap=target_prob.clone(),
        strict_mass=target_prob.clone(),
        coupled_mass=target_prob.clone(),
        coupled_prob=target_prob.clone(),
        block_overlap=prefix_ratios * target_prob,
    )
    for requests, positions, target_probs, draft_probs in compared_rows(proposal):
        scaled = prefix_ratios[requests, positions][:, None] * target_probs
        token_ids = proposal.token_ids[requests, positions]
        found.overlap[requests, positions] = torch.minimum(target_probs, draft_probs).sum(dim=1)
        found.strict_mass[requests, positions] = (target_probs * draft_probs).sum(dim=1)
        found.coupled_mass[requests, positions] = coupled_overlap(target_probs, draft_probs)
        found.coupled_prob[requests, positions] = coupled_agreement(target_probs, draft_probs, token_ids)
        found.block_overlap[requests, positions] = torch.minimum(scaled, draft_probs).sum(dim=1)
    return found


def overlaps(proposal: Proposal) -> Tensor:
    """[R, K] float64, the overlap alone: the largest probability with which any lossless rule accepts one such draft.

    Without a meaning where there is no usable draft token. What block verification needs of the same rows is kept.
    """
    found = proposal.target_logprobs.exp()
    prefix_ratios = None if "block_odds" in proposal.kept else log_prefix_ratios(proposal).exp()
    residuals = torch.zeros_like(found)
    for requests, positions, target_probs, draft_probs in compared_rows(proposal):
        found[requests, positions] = torch.minimum(target_probs, draft_probs).sum(dim=1)
        if prefix_ratios is not None:
            left = target_probs.mul_(prefix_ratios[requests, positions][:, None]).sub_(draft_probs)
            residuals[requests, positions] = left.clamp_(min=0.0).sum(dim=1)
    if prefix_ratios is not None:
        proposal.kept["compared_residuals"] = residuals
    return found


def compared_rows(proposal: Proposal) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """The usable draft tokens that are not one-hot, some at a time.

    Yields:
        Their requests and positions, [n] int64; the target's and the draft's distribution there, [n, V] float64.
    """
    compared = (proposal.usable & ~proposal.one_hot[:, None]).nonzero()
    for places in compared.split(places_per_chunk(proposal.target.logits)) if len(compared) else ():
        requests, positions = places.unbind(dim=1)
        target_probs = proposal.target.probs(proposal.rows[requests, positions])
        assert proposal.draft is not None, "only proposals with cached logits are compared"
        draft_probs = proposal.draft.probs(proposal.draft_rows[requests, positions])
        draft_probs = on_target_vocab(draft_probs, proposal.draft_to_target, target_probs.shape[1])
        yield requests, positions, target_probs, draft_probs


def places_per_chunk(target_logits: Tensor) -> int:
    return max(MIN_PLACES, rows_per_chunk(target_logits) // NUM_COPIES)


def coupled_overlap(target_probs: Tensor, draft_probs: Tensor) -> Tensor:
    """Probability that two draws with the same Gumbel noise agree (Daliri et al., arXiv 2408.07978).

        sum_i 1 / sum_j max(p_j / p_i, q_j / q_i), i over the common support

    With the tokens in descending order of p / q, the inner sum is (sum of p up to i) / p_i + (sum of q after i) / q_i.

    Args:
        target_probs: [N, V] float64, rows sum to 1.
        draft_probs: [N, V] float64, rows sum to 1.

    Returns:
        [N] float64.
    """
    ratio = torch.where(target_probs > 0, target_probs / draft_probs, 0.0)
    order = ratio.argsort(dim=1, descending=True)
    target, proposed = target_probs.gather(1, order), draft_probs.gather(1, order)
    target_through = target.cumsum(dim=1)
    proposed_after = proposed.flip(1).cumsum(dim=1).flip(1) - proposed
    common = (target > 0) & (proposed > 0)
    inner = target_through / torch.where(common, target, 1.0) + proposed_after / torch.where(common, proposed, 1.0)
    return torch.where(common, 1.0 / torch.where(common, inner, 1.0), 0.0).sum(dim=1)


def coupled_agreement(target_probs: Tensor, draft_probs: Tensor, token_ids: Tensor) -> Tensor:
    """Probability that the target's draw equals a token that the draft has drawn with the same Gumbel noise.

        P(y = x | X = x) = 1 / (q(x) sum_j max(p_j / p(x), q_j / q(x))) = p(x) / sum_j max(p_j q(x), q_j p(x))

    Its mean over x ~ q is `coupled_overlap`.

    Args:
        target_probs: [N, V] float64, rows sum to 1.
        draft_probs: [N, V] float64, rows sum to 1.
        token_ids: [N] int64, x; of positive draft probability.

    Returns:
        [N] float64.
    """
    target, proposed = (rows.gather(1, token_ids[:, None]) for rows in (target_probs, draft_probs))
    return target[:, 0] / torch.maximum(target_probs * proposed, draft_probs * target).sum(dim=1)
