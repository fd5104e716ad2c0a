"""Typical acceptance, lossy (Cai et al., Medusa, arXiv 2401.10774).

accept X_i iff p_i(X_i) > min(epsilon, delta * exp(-H(p_i))), H the entropy in nats;
stop at the first failure; the next token comes from the target.
"""

from __future__ import annotations

import torch

from kernels.reference.odds import Odds
from kernels.reference.proposal import Proposal


def typical_odds(proposal: Proposal, epsilon: float, delta: float) -> Odds:
    """[R, K] odds 1 : 1 or 0 : 1. At temperature 0, where p_i is certain, only the argmax passes, whatever epsilon."""
    rows = proposal.rows[:, :-1]
    target_probs = proposal.target_logprobs.exp()
    logprobs = proposal.target.logprobs()
    # 0 log 0 := 0, where a cut token would give 0 * -inf.
    entropy = -(logprobs.exp() * logprobs.clamp(min=torch.finfo(torch.float64).min)).sum(dim=1)[rows]
    passes = target_probs > (delta * torch.exp(-entropy)).clamp(max=epsilon)
    certain = target_probs == 1
    return Odds((passes | certain).double(), torch.ones_like(target_probs))
