"""Exact acceptance: what each chain method would accept of given drafts, in closed form and without sampling noise.

Letters: R requests, K the largest number of draft tokens of a request, V the target's vocabulary, N rows.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from kernels.contract import Draft, Sampling, TokenMask
from kernels.reference.block import block_odds, log_prefix_ratios
from kernels.reference.proposal import Proposal, leading, propose
from kernels.reference.target_rows import present_slots
from kernels.reference.token_mask import without_forbidden
from kernels.reference.truncation import sampling_rows


class AcceptanceTerms(NamedTuple):
    """The terms of each draft position, [R, K] float64 each; 0 where a request has no draft token."""

    target_prob: Tensor
    """p_i(X_i)."""
    draft_prob: Tensor
    """q_i(X_i); 1 for one-hot proposals."""
    overlap: Tensor | None
    """sum_x min(p_i(x), q_i(x)): probability that probabilistic verification accepts at i, before X_i is drawn."""
    strict_mass: Tensor | None
    """sum_x p_i(x) q_i(x): the same for strict verification."""
    block_threshold: Tensor
    """h_i of block verification."""


def _masses(proposal: Proposal) -> tuple[Tensor, Tensor]:
    """([R, K] overlap, [R, K] strict mass) of the usable draft tokens; p_i(X_i) both for one-hot proposals."""
    overlap = proposal.target_logprobs.exp()
    strict_mass = overlap.clone()
    if proposal.draft is None:
        return overlap, strict_mass
    for position in range(overlap.shape[1]):
        requests = ((proposal.num_usable > position) & ~proposal.one_hot).nonzero()[:, 0]
        target_probs = proposal.target.probs(proposal.rows[requests, position])
        draft_probs = proposal.draft.probs(proposal.draft_rows[requests, position])
        if proposal.draft_to_target is None:
            target_probs = target_probs[:, : draft_probs.shape[1]]
        else:
            target_probs = target_probs[:, proposal.draft_to_target]
        overlap[requests, position] = torch.minimum(target_probs, draft_probs).sum(dim=1)
        strict_mass[requests, position] = (target_probs * draft_probs).sum(dim=1)
    return overlap, strict_mass


def acceptance_terms(
    target_logits: Tensor,
    draft: Draft,
    sampling: Sampling,
    with_masses: bool = True,
    mask: TokenMask | None = None,
) -> AcceptanceTerms:
    """The closed-form terms of a round.

    Args:
        target_logits: [N, V], any floating dtype, packed or padded as for `verify`.
        draft: the proposals.
        sampling: fields [R].
        with_masses: also work out `overlap` and `strict_mass`, which read every row in full; None if not asked for.
        mask: of the target rows, as for `verify`.

    Returns:
        AcceptanceTerms. Draft tokens that verification would cut off (see proposal) count as missing, except in
        `target_prob`; padded slots have none.
    """
    if mask is not None:
        target_logits = without_forbidden(target_logits, mask)
    packed = present_slots(target_logits, draft)
    if packed is not None:
        target_logits, left, present = packed
        terms = acceptance_terms(target_logits, left, sampling_rows(sampling, present), with_masses)

        def spread(term: Tensor) -> Tensor:
            return term.new_zeros(draft.token_ids.shape).index_copy_(0, present, term)

        return AcceptanceTerms(
            target_prob=spread(terms.target_prob),
            draft_prob=spread(terms.draft_prob),
            overlap=None if terms.overlap is None else spread(terms.overlap),
            strict_mass=None if terms.strict_mass is None else spread(terms.strict_mass),
            block_threshold=spread(terms.block_threshold),
        )
    proposal = propose(target_logits, draft, sampling, reads_draft=True)
    overlap, strict_mass = _masses(proposal) if with_masses else (None, None)
    usable = proposal.usable
    return AcceptanceTerms(
        target_prob=proposal.target_logprobs.exp(),
        draft_prob=proposal.draft_logprobs.exp() * usable,
        overlap=None if overlap is None else overlap * usable,
        strict_mass=None if strict_mass is None else strict_mass * usable,
        block_threshold=block_odds(proposal, log_prefix_ratios(proposal)).probability() * usable,
    )


def expected_accepted(terms: AcceptanceTerms, draft: Draft) -> Tensor:
    """Expected number of accepted tokens given the drafts, E[A | X_1..X_K].

    strict         sum_i prod_{j<=i} p_j(X_j)
    probabilistic  sum_i prod_{j<=i} min(1, p_j(X_j) / q_j(X_j))
    block          sum_i (1 - prod_{j>=i} (1 - h_j)), since A >= i iff some j >= i passes

    Args:
        terms: of the same round.
        draft: the proposals.

    Returns:
        [R, 3] float64 for strict, probabilistic, block.
    """
    drafted = leading(draft.num_draft_tokens, terms.target_prob.shape[1])
    # Without a draft probability nothing is accepted; 1 only keeps the division defined.
    divisor = torch.where(terms.draft_prob > 0, terms.draft_prob, 1.0)
    ratio = (terms.target_prob / divisor).clamp(max=1.0) * (terms.draft_prob > 0)
    strict = (terms.target_prob * drafted).cumprod(dim=1).sum(dim=1)
    probabilistic = (ratio * drafted).cumprod(dim=1).sum(dim=1)
    fails = 1.0 - terms.block_threshold * drafted
    block = (1.0 - fails.flip(1).cumprod(dim=1)).sum(dim=1)
    return torch.stack([strict, probabilistic, block], dim=1)


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
