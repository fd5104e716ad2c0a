"""Rows that a verification has to read, from what it accepted.

    all rows   every target row once, and at each rejection the pair of rows of the rejected position, target and draft,
               once more: their weights cannot be known before the row's normaliser. An equivalent, not what is read:
               rows behind a rejection are credited though they may be skipped, so its rate may exceed the memory's
    needed     the same without the target rows behind a rejection, which decide nothing

Which rows come in pairs depends on the rule. Chain rules that compare with the draft's distribution need one pair at a
rejection. Block needs every draft position's target row, and the pair of each position behind the last accepted one.
One-hot proposals, and rules that emit from the target, need no pair: the chunk masses of the first reading say where
the token lies. Synthetic acceptance needs no row but the one that it emits from. Single logits are not counted.

Shapes: R requests.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from harness.kernel_bench.case import Case, Work
from kernels.contract import DraftSampling, VerificationMethod

Method = VerificationMethod


class RowCounts(NamedTuple):
    """Rows of V logits, over the whole batch."""

    all_rows: int
    """An equivalent: also the rows that may be skipped."""
    needed: int


def count_rows(case: Case, num_accepted: Tensor | None) -> RowCounts:
    """The rows of a case.

    Args:
        case: every request has K draft tokens.
        num_accepted: [R] int64; None for a draw, which reads its rows once.
    """
    if case.work is not Work.verify:
        return RowCounts(case.num_requests, case.num_requests)
    assert num_accepted is not None
    width, target_rows = case.width, case.num_target_rows
    accepted, num_complete = int(num_accepted.sum()), int((num_accepted == width).sum())
    num_rejected = case.num_requests - num_complete
    reads_draft = (
        case.method.traits.reads_draft and case.draft_sampling is not DraftSampling.greedy and case.temperature > 0
    )
    pairs = 0
    if reads_draft:
        pairs = case.num_requests * width - accepted if case.method is Method.block else num_rejected
    if case.method.traits.ignores_tokens:
        needed = case.num_requests
    elif case.method is Method.block:
        needed = case.num_requests * width + num_complete
    else:
        needed = accepted + case.num_requests
    return RowCounts(target_rows + 2 * pairs, needed + 2 * pairs)
