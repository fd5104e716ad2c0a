"""The margin of what a core found: how far float64 arithmetic is from having found the same.

A margin is in units of the relative error of one probability, so a finding is explained by rounding when its margin is
at most ROUNDING; where coupled noise decides, at most SCORE_ROUNDING. Truncation has a boundary of its own: top-p and
min-p keep a token or cut it, and rounding may decide. So a finding is also tested as if top-p and min-p were ROUNDING
larger or smaller, and its smallest margin counts.

Coupled verification draws y_i = argmax log p_i + g, which a core computes in float64. A token is explained when its
score is within SCORE_ROUNDING of the best: a gap of scores is the relative error of a probability that closes it.

Shapes: N rows, R requests, K the largest number of draft tokens, V the vocabulary at hand.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from harness.checks.agreement.acceptance_margin import acceptance_margin
from harness.checks.agreement.counts import ROUNDING
from harness.checks.agreement.round_inputs import DrawInputs, RoundInputs
from harness.checks.agreement.token_margin import interval_distance, token_margin
from kernels.contract import Drawn, Sampling, Streams, Verification, VerificationResult
from kernels.random.streams import gumbel, uniform
from kernels.reference.proposal import Proposal, propose, to_draft_ids
from kernels.reference.truncation import processed


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


def nearby(sampling: Sampling) -> list[Sampling]:
    """The sampling parameters, and those with top-p and min-p a rounding smaller and larger."""
    if not bool(((sampling.top_p < 1) | (sampling.min_p > 0)).any()):
        return [sampling]
    factors = [1.0, 1 - ROUNDING, 1 + ROUNDING]
    return [
        replace(
            sampling,
            top_p=torch.where(sampling.top_p < 1, sampling.top_p * factor, sampling.top_p),
            min_p=(sampling.min_p * factor).clamp(max=1.0),
        )
        for factor in factors
    ]


def verdict_margins(inputs: RoundInputs, verification: Verification, found: VerificationResult) -> Tensor:
    """The margin of each request's verdict.

    Args:
        inputs: the round, R requests.
        verification: the method; none may be explained where nothing is rounded, in a batch at temperature 0.
        found: fields [R].

    Returns:
        [R] float64; infinity where no rounding can explain the verdict.
    """
    if bool((inputs.sampling.temperature == 0).all()) and verification.traits.keeps_argmax:
        return torch.full(found.num_accepted.shape, torch.inf, dtype=torch.float64, device=found.num_accepted.device)
    margins = [_verdict_margin(replace(inputs, sampling=each), verification, found) for each in nearby(inputs.sampling)]
    return torch.stack(margins).amin(dim=0)


def _verdict_margin(inputs: RoundInputs, verification: Verification, found: VerificationResult) -> Tensor:
    proposal = propose(inputs.target_logits, inputs.draft, inputs.sampling, verification.traits.reads_draft)
    vocab_size, width = proposal.target.logits.shape[1], proposal.token_ids.shape[1]
    possible = (found.num_accepted >= 0) & (found.num_accepted <= proposal.num_usable)
    num_accepted = torch.where(possible, found.num_accepted, 0)
    last = found.token_ids.gather(1, num_accepted[:, None])[:, 0]
    index = torch.arange(width + 1, device=last.device)
    accepted = (found.token_ids[:, :width] == inputs.draft.token_ids) | (index[:width] >= num_accepted[:, None])
    padding = (found.token_ids == -1) | (index <= num_accepted[:, None])
    impossible = (num_accepted == proposal.num_usable) & proposal.impossible
    possible &= accepted.all(dim=1) & padding.all(dim=1) & (last >= 0) & (last < vocab_size)
    possible &= found.invalid == impossible
    last = torch.where(possible, last, 0)
    if verification.traits.compares_draws:
        margin = coupled_margin(proposal, inputs.streams, num_accepted, last)
    else:
        decisions = acceptance_margin(proposal, verification, inputs.streams, num_accepted)
        margin = torch.maximum(decisions, token_margin(proposal, verification, inputs.streams, num_accepted, last))
    return torch.where(possible, margin, torch.inf)


def drawn_margins(inputs: DrawInputs, found: Drawn) -> Tensor:
    """The margin of each drawn token.

    Args:
        inputs: N rows.
        found: fields [N].

    Returns:
        [N] float64; infinity where no rounding can explain the token, as at temperature 0.
    """
    logits, streams, purpose = inputs.logits, inputs.streams, inputs.purpose
    vocab_size, draft_to_target = inputs.vocab_size, inputs.draft_to_target
    inside = (found.token_ids >= 0) & (found.token_ids < vocab_size)
    known = to_draft_ids(found.token_ids.where(inside, 0), draft_to_target, vocab_size, logits.shape[1])
    possible = inside & (known >= 0)
    token_ids = known.where(possible, 0)
    margins = []
    for each in nearby(inputs.sampling):
        rows = processed(logits, each)
        index = torch.arange(len(token_ids), device=token_ids.device)
        valid = possible & (found.invalid == rows.invalid) & (rows.logprobs_at(index, token_ids) > -torch.inf)
        if purpose is None:
            noise = gumbel(streams.seeds, streams.positions, vocab_size)
            noise = noise[:, : logits.shape[1]] if draft_to_target is None else noise[:, draft_to_target]
            margin = score_margin(rows.logprobs(), noise, token_ids)
        else:
            uniforms = uniform(streams.seeds, purpose, streams.positions, streams.rounds)
            margin = interval_distance(rows.probs(), uniforms, token_ids) / 2
        margins.append(torch.where(valid, margin, torch.inf))
    return torch.stack(margins).amin(dim=0)
