"""Exact acceptance: what each chain method would accept of given drafts, in closed form and without sampling noise.

Shapes: R requests, K the largest number of draft tokens of a request, V the target's vocabulary, N rows.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..contract import Draft, Sampling
from ..methods.block import block_odds
from .entropy import entropies
from .masses import masses, overlaps
from .proposal import Compared, leading, propose
from .target_rows import present_slots
from .truncation import sampling_rows


class AcceptanceTerms(NamedTuple):
    """The terms of each draft position, [R, K] float64 each; 0 where a request has no draft token."""

    target_prob: Tensor
    """p_i(X_i)."""
    draft_prob: Tensor
    """q_i(X_i); 1 for one-hot proposals."""
    overlap: Tensor
    """sum_x min(p_i(x), q_i(x)): probability that probabilistic verification accepts at i, before X_i is drawn; no
    lossless rule accepts one such draft token more often (see optimal_acceptance)."""
    strict_mass: Tensor | None
    """sum_x p_i(x) q_i(x): the same for strict verification."""
    block_threshold: Tensor
    """h_i of block verification."""
    coupled_mass: Tensor | None = None
    """Probability that coupled verification accepts at i, before X_i is drawn."""
    coupled_prob: Tensor | None = None
    """The same given X_i, which was drawn with the noise that the target's draw will use."""
    block_overlap: Tensor | None = None
    """sum_x min(P_{i-1} p_i(x), q_i(x)): probability that block accepts i tokens or more, given X_1 .. X_{i-1}."""
    target_entropy: Tensor | None = None
    """H(p_i) in nats, which typical verification compares with."""


def acceptance_terms(
    target_logits: Tensor,
    draft: Draft,
    sampling: Sampling,
    with_masses: bool = True,
    compared: Compared | None = None,
) -> AcceptanceTerms:
    """The closed-form terms of a round.

    Args:
        target_logits: [N, V], any floating dtype, packed or padded as for `verify`.
        draft: the proposals.
        sampling: fields [R].
        with_masses: also compute the other masses and the entropy; they are None otherwise.
        compared: what the verification of the same round, without masks, has worked out; None works it out again.

    Returns:
        AcceptanceTerms. Draft tokens that verification would cut off (see proposal) count as missing, except in
        `target_prob`; padded slots have none.
    """
    packed = present_slots(target_logits, draft)
    if packed is not None:
        target_logits, left, present = packed
        terms = acceptance_terms(target_logits, left, sampling_rows(sampling, present), with_masses, compared)

        def spread(term: Tensor | None) -> Tensor | None:
            return None if term is None else term.new_zeros(draft.token_ids.shape).index_copy_(0, present, term)

        return AcceptanceTerms(*map(spread, terms))  # type: ignore[arg-type]
    if compared is not None and compared.proposal is not None:
        proposal = compared.proposal
    else:
        proposal = propose(target_logits, draft, sampling, True, compared, reads_stats=compared is not None)
    usable = proposal.usable
    found = masses(proposal) if with_masses else None
    terms = AcceptanceTerms(
        target_prob=proposal.target_logprobs.exp(),
        draft_prob=proposal.draft_logprobs.exp() * usable,
        overlap=(overlaps(proposal) if found is None else found.overlap) * usable,
        strict_mass=None,
        block_threshold=block_odds(proposal).probability() * usable,
    )
    if found is None:
        return terms
    entropy = entropies(proposal.target)[proposal.rows[:, :-1]] * usable
    return terms._replace(target_entropy=entropy, **{name: term * usable for name, term in found._asdict().items()})


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
