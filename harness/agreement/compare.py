"""Run two cores on the same inputs with the same streams and count where they disagree.

Shapes: N rows, R requests, K the largest number of draft tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from harness.agreement.counts import Agreement, Disagreement
from harness.agreement.margins import drawn_margins, verdict_margins
from harness.agreement.round_inputs import RoundInputs, streams_at
from harness.agreement.rounding import ROUNDING, SCORE_ROUNDING, tolerance_of
from kernels.contract import Drawn, Sampling, Streams, Verification, VerificationResult
from kernels.core import Core
from kernels.methods import Method, methods_with
from kernels.reference.truncation import sampling_rows
from kernels.streams import Purpose

DRAWS_ONLY = methods_with(lambda traits: traits.greedy_only or (traits.decided_by_noise and not traits.reads_draft))
"""Methods that accept a draft token iff they have drawn the same."""
ROWS_AT_A_TIME = 32
"""Disagreeing requests that are worked out in float64 at a time."""


def num_accept_decisions(draft_lengths: Tensor, num_accepted: Tensor, method: Method) -> int:
    """Accept decisions that the rule takes; see harness.agreement.counts.

    Args:
        draft_lengths: [R] int64, K_r.
        num_accepted: [R] int64.
        method: of the verification.
    """
    if method in DRAWS_ONLY:
        return 0
    if not method.traits.stops_at_first_failure:
        return int((draft_lengths - num_accepted + (num_accepted > 0)).sum())
    return int(torch.minimum(num_accepted + 1, draft_lengths).sum())


def compare_verify(tested: Core, reference: Core, inputs: RoundInputs, verification: Verification) -> Agreement:
    """Verify one round with both cores.

    Args:
        tested: the core under test.
        reference: kernels.core.reference_core().
        inputs: R requests, none of them a padded slot.
        verification: the method.
    """
    arguments = (inputs.target_logits, inputs.draft, inputs.sampling, verification, inputs.streams)
    found, expected = tested.verify(*arguments), reference.verify(*arguments)
    same = (found.token_ids == expected.token_ids).all(dim=1)
    same &= (found.num_accepted == expected.num_accepted) & (found.invalid == expected.invalid)
    disagreements = []
    for requests in (~same).nonzero()[:, 0].split(ROWS_AT_A_TIME):
        if len(requests):
            part = VerificationResult(found.token_ids[requests], found.num_accepted[requests], found.invalid[requests])
            margins = verdict_margins(inputs.take(requests), verification, part)
            decides = (found.num_accepted != expected.num_accepted)[requests]
            decides &= verification.method not in DRAWS_ONLY
            tolerance = tolerance_of(verification.method)
            both = (found.token_ids, expected.token_ids)
            disagreements += _listed("verify", *both, requests, decides, margins, tolerance)
    lengths, drawn = inputs.draft.num_draft_tokens, len(same)
    if verification.method in DRAWS_ONLY:
        drawn += int(expected.num_accepted.sum())
    decisions = num_accept_decisions(lengths, expected.num_accepted, verification.method)
    return Agreement(decisions, drawn, tuple(disagreements))


def compare_draw(
    tested: Core,
    reference: Core,
    logits: Tensor,
    sampling: Sampling,
    streams: Streams,
    purpose: Purpose | None,
    vocab_size: int,
    draft_to_target: Tensor | None = None,
) -> Agreement:
    """Draw one token per row with both cores.

    Args:
        tested: the core under test.
        reference: kernels.core.reference_core().
        logits: [N, V_draft].
        sampling: fields [N].
        streams: fields [N].
        purpose: of the draw; None for the coupled draw.
        vocab_size: V of the target.
        draft_to_target: as for `draw`.
    """
    found, expected = (
        core.coupled_draw(logits, sampling, streams, vocab_size, draft_to_target)
        if purpose is None
        else core.draw(logits, sampling, streams, purpose, draft_to_target)
        for core in (tested, reference)
    )
    same = (found.token_ids == expected.token_ids) & (found.invalid == expected.invalid)
    disagreements = []
    for rows in (~same).nonzero()[:, 0].split(ROWS_AT_A_TIME):
        if len(rows):
            part = Drawn(found.token_ids[rows], found.logprobs[rows], found.invalid[rows])
            margins = drawn_margins(
                logits[rows],
                sampling_rows(sampling, rows),
                streams_at(streams, rows),
                purpose,
                part,
                vocab_size,
                draft_to_target,
            )
            what = "coupled_draw" if purpose is None else "draw"
            token_ids = (found.token_ids[:, None], expected.token_ids[:, None])
            decides = torch.zeros_like(rows, dtype=torch.bool)
            tolerance = SCORE_ROUNDING if purpose is None else ROUNDING
            disagreements += _listed(what, *token_ids, rows, decides, margins, tolerance)
    return Agreement(0, len(same), tuple(disagreements))


def _listed(
    what: str, found: Tensor, expected: Tensor, rows: Tensor, decides: Tensor, margins: Tensor, tolerance: float
) -> list[Disagreement]:
    margins = margins.nan_to_num(nan=torch.inf, posinf=torch.inf)
    return [
        Disagreement(what, decision, tuple(one), tuple(other), margin, tolerance)
        for decision, one, other, margin in zip(
            decides.tolist(), found[rows].tolist(), expected[rows].tolist(), margins.tolist(), strict=True
        )
    ]
