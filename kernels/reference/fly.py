"""FLy, lossy: entropy-gated deferral (Li et al., arXiv 2511.22972), as vLLM 0.33.0 has it (v1/spec_decode/fly.py).

Natively, draft tokens pass as under probabilistic verification: u_i q_i(X_i) < p_i(X_i), and at temperature 0 where X_i
is the target's argmax. With a window of W tokens and a threshold on the entropy over the k most likely ones,

    H_i = - sum of p_i(x) log p_i(x) over the k most likely tokens x, in nats, not normalised again
    X_i that fails natively passes all the same (is deferred) iff
        H_i >= threshold,  p_i(X_i) > 0,  and X_{i+1}..X_{i+W} all pass natively

The rule then stops at the first token that does not pass, and what follows comes from the residual, as under
probabilistic verification. All of it is decided inside a round: a window that reaches beyond the last draft token, or
beyond one that cannot be verified, is not full, and its token is rejected. No state goes from a round to the next.

p_i is the processed distribution. At temperature 0 it is certain, so that H_i and p_i(X_i) > 0 are those of
temperature 1 without a cut. (vLLM's model runner V2 takes those for every temperature, which its documentation does not
say.)
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..verification import Verification
from .probabilistic import probabilistic_odds
from .proposal import Proposal
from .truncation import Processed, rows_per_chunk


def top_entropies(rows: Processed, top_k: int) -> Tensor:
    """[N] float64, H of each row, in nats; without a meaning for a row without a distribution."""
    found = torch.zeros_like(rows.log_normalizer)
    for part in torch.arange(len(found), device=found.device).split(rows_per_chunk(rows.logits)):
        logprobs = rows.logprobs(part)
        certain = (rows.certain[part] >= 0).nonzero()[:, 0]
        if len(certain):
            logprobs[certain] = rows.logits[part[certain]].double().log_softmax(dim=1)
        largest = logprobs.topk(min(top_k, logprobs.shape[1]), dim=1).values
        # 0 log 0 := 0
        found[part] = -(largest.exp() * largest.clamp(min=torch.finfo(torch.float64).min)).sum(dim=1)
    return found


def is_possible(proposal: Proposal) -> Tensor:
    """[R, K] bool, p_i(X_i) > 0."""
    rows = proposal.rows[:, :-1]
    logits = proposal.target.logits[rows, proposal.token_ids]
    certain = proposal.target.certain[rows] >= 0
    return torch.where(certain, logits > -torch.inf, proposal.target_logprobs > -torch.inf)


def is_open(proposal: Proposal, verification: Verification) -> Tensor:
    """[R, K] bool, whether the entropy and p_i(X_i) would let a draft token be deferred."""
    entropies = top_entropies(proposal.target, verification.fly_entropy_top_k)
    return is_possible(proposal) & (entropies[proposal.rows[:, :-1]] >= verification.fly_entropy_threshold)


def has_full_window(passes: Tensor, proposal: Proposal, window_size: int) -> Tensor:
    """[R, K] bool, whether each draft token has W usable ones behind it that pass."""
    width = passes.shape[1]
    if window_size >= width:
        return torch.zeros_like(passes)
    natively = passes & proposal.usable
    full = natively[:, 1:].unfold(1, window_size, 1).all(dim=2)
    return torch.nn.functional.pad(full, (0, width - full.shape[1]))


def with_deferred(passes: Tensor, proposal: Proposal, verification: Verification) -> Tensor:
    """[R, K] bool, what passes natively -> what passes."""
    full = has_full_window(passes, proposal, verification.fly_window_size)
    return passes | (full & is_open(proposal, verification)) if bool((full & ~passes).any()) else passes


def deferral_probability(proposal: Proposal, verification: Verification) -> Tensor:
    """[R] float64 in [0, 1], how likely it is, given the drafts, that the first one fails natively and is deferred."""
    natively = probabilistic_odds(proposal).probability().masked_fill(~proposal.usable, 0.0)
    window = verification.fly_window_size
    if window >= natively.shape[1]:
        return natively.new_zeros(len(natively))
    opens = (is_open(proposal, verification) & proposal.usable)[:, 0]
    return (1 - natively[:, 0]) * opens * natively[:, 1 : window + 1].prod(dim=1)
