"""Measure the sampling core on one case: check it against the reference, then time it, then count what it costs.

Beside time it costs launches, and memory beyond its arguments; both are counted on a GPU only.

The rows that a verification has to read follow from what it accepted:

    all rows   every target row once, and at each rejection the pair of rows of the rejected position, target and draft,
               once more: their weights cannot be known before the row's normaliser. An equivalent, not what is read:
               rows after a rejection are credited though they may be skipped, so its rate may exceed the memory's
    needed     the same without the target rows after a rejection, which decide nothing

Which rows come in pairs depends on the rule. Chain rules that compare with the draft's distribution need one pair at a
rejection. Block needs every draft position's target row, and the pair of each position after the last accepted one.
One-hot proposals, and rules that emit from the target, need no pair: the chunk masses of the first reading say where
the token lies. Synthetic acceptance needs no row but the one that it emits from. Without statistics
each draft row up to a rejection is read once more. Single logits are not counted. Of a tree the rows of the nodes that
the walk visits are needed, without statistics also the draft rows of their children, and a pair at each rejected child.
Traversal also visits the nodes that it deletes, whose rows it needs where they have children.

Shapes: R requests.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from harness.checks.agreement.round_inputs import RoundInputs
from harness.checks.kernel_bench.case import Case, Work
from harness.checks.kernel_bench.check import check_drawn, check_verdict
from harness.checks.kernel_bench.edited_rows import edit_of, edited_bytes
from harness.checks.kernel_bench.records import Measurement
from harness.checks.kernel_bench.rows import sampling_of, streams_of
from harness.checks.kernel_bench.tree_workload import deleted_nodes, make_tree_round, num_discounts, num_rejected
from harness.checks.kernel_bench.workload import draw_logits, make_round, verification_of
from harness.checks.timing.clock import Clock, captured
from kernels.contract import (
    Draft,
    DraftSampling,
    Drawn,
    RowStats,
    Sampling,
    Streams,
    VerificationMethod,
    VerificationResult,
)
from kernels.core import Core
from kernels.methods import TreeMethod
from kernels.random.streams import Purpose

Method = VerificationMethod


class RowCounts(NamedTuple):
    """Rows of V logits, over the whole batch."""

    all_rows: int
    """An equivalent: also the rows that may be skipped."""
    needed: int


def count_tree_rows(case: Case, draft: Draft, found: VerificationResult) -> RowCounts:
    """The rows of a case of trees, whose draft rows have no statistics."""
    assert found.path is not None
    deleted = []
    if case.method is TreeMethod.traversal:
        deleted = deleted_nodes(case, draft, found.path, found.num_accepted)
    returned_from = sum(node in case.parents for node in deleted)
    visited = int(found.num_accepted.sum()) + case.num_requests + returned_from
    if draft.logits is None or case.temperature == 0:
        return RowCounts(case.num_target_rows, visited)
    inner = sum(node in case.parents for node in range(-1, case.width))
    above = torch.tensor([node in case.parents for node in range(case.width)], device=found.path.device)
    accepted = torch.arange(case.width, device=above.device) < found.num_accepted[:, None]
    drafted = case.num_requests + int((above[found.path.clamp(min=0)] & accepted).sum()) + returned_from
    if case.method is TreeMethod.traversal:
        pairs = 2 * len(deleted)
    else:
        weighed = num_discounts if case.method is TreeMethod.kseq else num_rejected
        pairs = 2 * weighed(case, draft, found.path, found.num_accepted)
    return RowCounts(case.num_target_rows + inner * case.num_requests + pairs, visited + drafted + pairs)


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
    draft_rows, needed_draft_rows = 0, 0
    if reads_draft and not case.keeps_statistics:
        draft_rows = case.num_requests * width
        needed_draft_rows = draft_rows if case.method is Method.block else accepted + num_rejected
    return RowCounts(target_rows + 2 * pairs + draft_rows, needed + 2 * pairs + needed_draft_rows)


@dataclass(frozen=True)
class Rows:
    """What a draw is given."""

    logits: Tensor
    """[R, V]."""
    sampling: Sampling
    streams: Streams


def inputs_of(case: Case, core: Core, seed: int, device: torch.device) -> RoundInputs | Rows:
    """The batch of a case."""
    if case.tree:
        return make_tree_round(case, seed, device)
    if case.work is Work.verify:
        return make_round(case, core, seed, device)
    return Rows(
        draw_logits(case, seed, device),
        sampling_of(case.num_requests, case.temperature, case.truncation, device),
        streams_of(case.num_requests, seed, device),
    )


def work_of(case: Case, core: Core, inputs: RoundInputs | Rows) -> Callable[[], VerificationResult | Drawn]:
    """The call that is timed; a draw of drafts keeps the statistics of its rows, as the engine's does."""
    if isinstance(inputs, RoundInputs):
        arguments = (inputs.target_logits, inputs.draft, inputs.sampling, verification_of(case), inputs.streams)
        if not case.edited_tokens:
            return lambda: core.verify(*arguments)
        edit = edit_of(case, core, inputs)

        def edited() -> VerificationResult:
            edit()
            return core.verify(*arguments)

        return edited
    logits, sampling, streams = inputs.logits, inputs.sampling, inputs.streams
    if case.work is Work.coupled_draw:
        return lambda: core.coupled_draw(logits, sampling, streams, case.vocab_size)
    stats = RowStats.empty(case.num_requests, device=logits.device)
    return lambda: core.draw(logits, sampling, streams, Purpose.draft, row_stats=stats)


def measure(
    case: Case, core: Core, inputs: RoundInputs | Rows, clock: Clock, num_checked: int
) -> tuple[Measurement, RowCounts]:
    """The measurement of the core, and the rows that the case has to read.

    Raises:
        Disagreement: the core does not agree with the reference; it is not timed.
    """
    work = work_of(case, core, inputs)
    on_gpu = inputs.streams.seeds.device.type == "cuda"
    extra_bytes = extra_memory(work) if on_gpu else None
    found = work()
    mean_accepted: float | None = None
    if isinstance(found, VerificationResult):
        assert isinstance(inputs, RoundInputs)
        agreement = check_verdict(case, found, inputs, verification_of(case), num_checked)
        mean_accepted = float(found.num_accepted.double().mean())
        if case.tree:
            counts = count_tree_rows(case, inputs.draft, found)
        else:
            counts = count_rows(case, found.num_accepted)
    else:
        assert isinstance(inputs, Rows)
        agreement = check_drawn(case, found, inputs.logits, inputs.sampling, inputs.streams, num_checked)
        counts = count_rows(case, None)
    measurement = Measurement(
        case,
        core.name,
        timing=clock.time(work),
        again_us=clock.time(work).median_us,
        warm_us=clock.time(work, is_cold=False).median_us if on_gpu else None,
        mean_accepted=mean_accepted,
        bytes_all_rows=counts.all_rows * case.row_bytes + edited_bytes(case),
        bytes_needed=counts.needed * case.row_bytes + edited_bytes(case),
        workspace_bytes=None if core.workspace is None else core.workspace.num_bytes,
        extra_bytes=extra_bytes,
        num_launches=num_launches(work) if on_gpu else None,
        agreement=agreement,
    )
    return measurement, counts


def extra_memory(work: Callable[[], object]) -> int:
    """Most bytes that the allocator held during one call, beyond those held before it."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    kept = work()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated()
    del kept
    return peak - before


def num_launches(work: Callable[[], object]) -> int | None:
    """Kernels, copies and fills of one call, as nodes of its graph; None if they cannot be counted.

    Args:
        work: can be captured in a graph.
    """
    count = ctypes.c_size_t()
    try:
        graph = captured(work, keep_graph=True)
        driver = ctypes.CDLL("libcuda.so.1")
        code = driver.cuGraphGetNodes(ctypes.c_void_p(graph.raw_cuda_graph()), None, ctypes.byref(count))
    except (AttributeError, OSError, RuntimeError):
        return None
    return count.value if code == 0 else None
