"""Typical acceptance, lossy (Cai et al., Medusa, arXiv 2401.10774).

accept X_i iff p_i(X_i) > min(epsilon, delta * exp(-H(p_i))), H the entropy in nats;
stop at the first failure; the next token comes from the target.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .odds import Odds
from .proposal import Proposal
from .truncation import Processed, rows_per_chunk

NUM_ROWS_PER_CHUNK = 16
"""Rows computed in full at a time, at least."""


def entropies(rows: Processed) -> Tensor:
    """[N] float64, nats."""
    found = torch.zeros_like(rows.log_normalizer)
    step = max(NUM_ROWS_PER_CHUNK, rows_per_chunk(rows.logits))
    for part in torch.arange(len(found), device=found.device).split(step):
        logprobs = rows.logprobs(part)
        # 0 log 0 := 0, where a cut token would give 0 * -inf.
        found[part] = -(logprobs.exp() * logprobs.clamp_(min=torch.finfo(torch.float64).min)).sum(dim=1)
    return found


def typical_odds(proposal: Proposal, epsilon: float, delta: float) -> Odds:
    """[R, K] odds 1 : 1 or 0 : 1. At temperature 0, where p_i is certain, only the argmax passes, whatever epsilon."""
    target_probs = proposal.target_logprobs.exp()
    threshold = (delta * torch.exp(-entropies(proposal.target)[proposal.rows[:, :-1]])).clamp(max=epsilon)
    passes = target_probs > threshold
    certain = target_probs == 1
    return Odds((passes | certain).double(), torch.ones_like(target_probs))
