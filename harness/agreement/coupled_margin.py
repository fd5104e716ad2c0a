"""How far coupled verification lies from the tokens that float64 chooses: the gap between perturbed scores.

y_i = argmax log p_i + g, which a core works out in float64: a token is explained when its score is within
SCORE_ROUNDING of the best. A gap of scores is the relative error of a probability that closes it.

Shapes: N rows, R requests, K the largest number of draft tokens, V the vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.contract import Streams
from kernels.reference.proposal import Proposal
from kernels.streams import gumbel


def score_margin(logprobs: Tensor, noise: Tensor, token_ids: Tensor) -> Tensor:
    """[N] float64: how far the score of each token lies below the best.

    Args:
        logprobs: [N, V] float64.
        noise: [N, V] float64.
        token_ids: [N] int64 in [0, V).
    """
    scores = logprobs + noise
    return scores.amax(dim=1) - scores.gather(1, token_ids[:, None])[:, 0]


def coupled_margin(proposal: Proposal, streams: Streams, num_accepted: Tensor, token_ids: Tensor) -> Tensor:
    """How far the tokens of a coupled verification lie from those that float64 chooses.

    Args:
        proposal: the round, in float64.
        streams: fields [R].
        num_accepted: [R] int64, what a core found.
        token_ids: [R] int64, the token after them, in [0, V).

    Returns:
        [R] float64; infinity where more was accepted than can be, or a token equal to the draft's was not accepted.
    """
    target = proposal.target
    margin = torch.zeros(len(num_accepted), dtype=torch.float64, device=num_accepted.device)
    for position in range(proposal.token_ids.shape[1] + 1):
        going = (num_accepted >= position).nonzero()[:, 0]
        noise = gumbel(streams.seeds[going], streams.positions[going] + position, target.logits.shape[1])
        emitted = token_ids[going]
        if position < proposal.token_ids.shape[1]:
            accepted = num_accepted[going] > position
            emitted = torch.where(accepted, proposal.token_ids[going, position], emitted)
            ignored = ~accepted & (emitted == proposal.token_ids[going, position])
            ignored &= proposal.num_usable[going] > position
            margin[going[ignored]] = torch.inf
        here = score_margin(target.logprobs(proposal.rows[going, position]), noise, emitted)
        margin[going] = torch.maximum(margin[going], here)
    return torch.where(num_accepted > proposal.num_usable, torch.inf, margin)
