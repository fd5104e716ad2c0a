"""Refuses a core that disagrees with the reference: what it found in the very batch that is about to be timed.

Float rounding may move the boundary of a decision, so a disagreement counts only if it is not within rounding of one
(harness.checks.agreement).
"""

from __future__ import annotations

import torch
from torch import Tensor

from harness.checks.agreement.compare import compare_drawn, compare_verdicts
from harness.checks.agreement.counts import Agreement
from harness.checks.agreement.round_inputs import DrawInputs, RoundInputs
from harness.checks.kernel_bench.case import Case, Work
from harness.checks.kernel_bench.records import AgreementCount
from kernels.contract import Drawn, Sampling, Streams, Verification, VerificationResult
from kernels.core import reference_core
from kernels.random.streams import Purpose


class Disagreement(ValueError):
    """The core and the reference found different tokens, and rounding does not explain it."""


def spread_over(num_requests: int, num_checked: int, device: torch.device) -> Tensor:
    """[n] int64, requests from the first to the last of a batch, `num_checked` of them if there are as many."""
    count = min(num_requests, num_checked)
    return torch.linspace(0, num_requests - 1, count, device=device).round().long()


def check_verdict(
    case: Case, verdict: VerificationResult, inputs: RoundInputs, verification: Verification, num_checked: int
) -> AgreementCount:
    """Compare some requests of a verdict with the reference.

    Args:
        case: for the message.
        verdict: of the whole batch.
        inputs: R requests.
        verification: the method.
        num_checked: requests to compare at most.

    Raises:
        Disagreement: if any of them differs by more than rounding.
    """
    requests = spread_over(case.num_requests, num_checked, verdict.num_accepted.device)
    path = None if verdict.path is None else verdict.path[requests]
    part = VerificationResult(
        verdict.token_ids[requests], verdict.num_accepted[requests], verdict.invalid[requests], path=path
    )
    taken = inputs.take(requests)
    expected = taken.verified_by(reference_core(), verification)
    return _counted(case, compare_verdicts(part, expected, taken, verification), len(requests))


def check_drawn(
    case: Case, drawn: Drawn, logits: Tensor, sampling: Sampling, streams: Streams, num_checked: int
) -> AgreementCount:
    """The same for a draw of `Purpose.draft`, or a coupled one; `logits` is [R, V]."""
    rows = spread_over(case.num_requests, num_checked, logits.device)
    part = Drawn(drawn.token_ids[rows], drawn.logprobs[rows], drawn.invalid[rows])
    purpose = Purpose.draft if case.work is Work.draw else None
    inputs = DrawInputs(logits, sampling, streams, purpose, case.vocab_size).take(rows)
    agreement = compare_drawn(part, inputs.drawn_by(reference_core()), inputs)
    return _counted(case, agreement, len(rows))


def _counted(case: Case, agreement: Agreement, num_requests: int) -> AgreementCount:
    if agreement.num_unexplained:
        first = next(each for each in agreement.disagreements if not each.explained)
        raise Disagreement(
            f"{case.name}: the core disagrees with the reference in {agreement.num_unexplained} of {num_requests} "
            f"requests beyond rounding: expected {list(first.expected)}, found {list(first.found)}. Nothing is "
            "reported; run the tests of the kernels"
        )
    return AgreementCount(num_requests, agreement.num_decisions, agreement.num_disagreements)
