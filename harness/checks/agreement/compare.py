"""Run two cores on the same inputs with the same streams and count where they disagree.

Shapes: N rows, R requests, K the largest number of draft tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from harness.checks.agreement.counts import ROUNDING, SCORE_ROUNDING, Agreement, Disagreement, tolerance_of
from harness.checks.agreement.margins import drawn_margins, verdict_margins
from harness.checks.agreement.round_inputs import ChildDraws, DrawInputs, RoundInputs
from harness.checks.agreement.tree_margin import child_margins, same_verdicts, tree_margins
from kernels.contract import Drawn, Verification, VerificationResult
from kernels.core import Core
from kernels.methods import Method, methods_with

DRAWS_ONLY = methods_with(lambda traits: traits.greedy_only or traits.compares_draws)
"""Methods that accept a draft token iff they have drawn the same."""
ROWS_AT_A_TIME = 32
"""Disagreeing requests that are computed in float64 at a time."""


def num_accept_decisions(draft_lengths: Tensor, num_accepted: Tensor, method: Method) -> int:
    """Accept decisions that the rule takes; see harness.checks.agreement.counts.

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
        inputs: R requests.
        verification: the method.
    """
    found, expected = inputs.verified_by(tested, verification), inputs.verified_by(reference, verification)
    return compare_verdicts(found, expected, inputs, verification)


def compare_verdicts(
    found: VerificationResult, expected: VerificationResult, inputs: RoundInputs, verification: Verification
) -> Agreement:
    """What two cores found of one round; in a padded slot no rounding explains a difference. Of trees the accept
    decisions are not counted."""
    is_tree = inputs.draft.parents is not None
    lengths, both = inputs.draft.num_draft_tokens, (found.token_ids, expected.token_ids)
    is_present = lengths >= 0
    differs = ~same_verdicts(found, expected)
    padded = (differs & ~is_present).nonzero()[:, 0]
    disagreements = _unexplained(found, expected, padded)
    for requests in (differs & is_present).nonzero()[:, 0].split(ROWS_AT_A_TIME):
        if len(requests):
            path = None if found.path is None else found.path[requests]
            fields = found.token_ids[requests], found.num_accepted[requests], found.invalid[requests]
            part = VerificationResult(*fields, path=path)
            margins_of = tree_margins if is_tree else verdict_margins
            margins = margins_of(inputs.take(requests), verification, part)
            decides = (found.num_accepted != expected.num_accepted)[requests]
            decides &= verification.method not in DRAWS_ONLY
            tolerance = tolerance_of(verification.method)
            disagreements += _listed("verify", *both, requests, decides, margins, tolerance)
    # A padded slot that differs counts as a token.
    drawn = int(is_present.sum()) + len(padded)
    if verification.method in DRAWS_ONLY:
        drawn += int(expected.num_accepted.sum())
    if is_tree:
        return Agreement(0, drawn, tuple(disagreements))
    accepted = expected.num_accepted[is_present]
    decisions = num_accept_decisions(lengths[is_present], accepted, verification.method)
    return Agreement(decisions, drawn, tuple(disagreements))


def compare_exactly(found: VerificationResult, expected: VerificationResult) -> Agreement:
    """The same where no rounding explains a difference."""
    requests = (~same_verdicts(found, expected)).nonzero()[:, 0]
    return Agreement(0, len(found.invalid), tuple(_unexplained(found, expected, requests)))


def _unexplained(found: VerificationResult, expected: VerificationResult, requests: Tensor) -> list[Disagreement]:
    decides = (found.num_accepted != expected.num_accepted)[requests]
    never = torch.full(requests.shape, torch.inf)
    return _listed("verify", found.token_ids, expected.token_ids, requests, decides, never, ROUNDING)


def compare_draw(tested: Core, reference: Core, inputs: DrawInputs) -> Agreement:
    """Draw one token per row with both cores; arguments as of `compare_verify`."""
    return compare_drawn(inputs.drawn_by(tested), inputs.drawn_by(reference), inputs)


def compare_drawn(found: Drawn, expected: Drawn, inputs: DrawInputs) -> Agreement:
    """What two cores drew from the same rows."""
    same = (found.token_ids == expected.token_ids) & (found.invalid == expected.invalid)
    what, tolerance = ("coupled_draw", SCORE_ROUNDING) if inputs.purpose is None else ("draw", ROUNDING)
    disagreements = []
    for rows in (~same).nonzero()[:, 0].split(ROWS_AT_A_TIME):
        if len(rows):
            part = Drawn(found.token_ids[rows], found.logprobs[rows], found.invalid[rows])
            margins = drawn_margins(inputs.take(rows), part)
            token_ids = (found.token_ids[:, None], expected.token_ids[:, None])
            decides = torch.zeros_like(rows, dtype=torch.bool)
            disagreements += _listed(what, *token_ids, rows, decides, margins, tolerance)
    return Agreement(0, len(same), tuple(disagreements))


def compare_children(tested: Core, reference: Core, inputs: ChildDraws) -> Agreement:
    """Draw the children of nodes with both cores. Each counts as a token; those of a node differ together."""
    found, expected = inputs.drawn_by(tested), inputs.drawn_by(reference)
    disagreements = []
    for rows in (found != expected).any(dim=1).nonzero()[:, 0].split(ROWS_AT_A_TIME):
        if len(rows):
            margins = child_margins(inputs.take(rows), found[rows])
            decides = torch.zeros_like(rows, dtype=torch.bool)
            disagreements += _listed("draw_children", found, expected, rows, decides, margins, ROUNDING)
    return Agreement(0, found.numel(), tuple(disagreements))


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
