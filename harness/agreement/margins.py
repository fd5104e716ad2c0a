"""The margin of what a core found: how far float64 arithmetic is from having found the same.

A margin is in units of the relative error of one probability, so a finding is explained by rounding when its margin is
at most ROUNDING; where coupled noise decides, at most SCORE_ROUNDING. Truncation has a boundary of its own: top-p and
min-p keep a token or cut it, and rounding may decide. So a finding is also judged as if top-p and min-p were ROUNDING
larger or smaller, and its smallest margin counts.

Shapes: N rows, R requests, V the vocabulary at hand.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from harness.agreement.acceptance_margin import acceptance_margin
from harness.agreement.coupled_margin import coupled_margin, score_margin
from harness.agreement.round_inputs import RoundInputs
from harness.agreement.rounding import ROUNDING
from harness.agreement.token_margin import interval_distance, token_margin
from kernels.contract import Drawn, Sampling, Streams, Verification, VerificationMethod, VerificationResult
from kernels.reference.proposal import propose, to_draft_ids
from kernels.reference.truncation import processed
from kernels.streams import Purpose, gumbel, uniform

Method = VerificationMethod


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
    if bool((inputs.sampling.temperature == 0).all()) and not verification.traits.ignores_tokens:
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
    if verification.method is Method.coupled:
        margin = coupled_margin(proposal, inputs.streams, num_accepted, last)
    else:
        decisions = acceptance_margin(proposal, verification, inputs.streams, num_accepted)
        margin = torch.maximum(decisions, token_margin(proposal, verification, inputs.streams, num_accepted, last))
    return torch.where(possible, margin, torch.inf)


def drawn_margins(
    logits: Tensor,
    sampling: Sampling,
    streams: Streams,
    purpose: Purpose | None,
    found: Drawn,
    vocab_size: int,
    draft_to_target: Tensor | None = None,
) -> Tensor:
    """The margin of each drawn token.

    Args:
        logits: [N, V_draft].
        sampling: fields [N].
        streams: fields [N].
        purpose: of the draw; None for the coupled draw.
        found: fields [N].
        vocab_size: V of the target.
        draft_to_target: as for `draw`.

    Returns:
        [N] float64; infinity where no rounding can explain the token, as at temperature 0.
    """
    inside = (found.token_ids >= 0) & (found.token_ids < vocab_size)
    known = to_draft_ids(found.token_ids.where(inside, 0), draft_to_target, vocab_size, logits.shape[1])
    possible = inside & (known >= 0)
    token_ids = known.where(possible, 0)
    margins = []
    for each in nearby(sampling):
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
