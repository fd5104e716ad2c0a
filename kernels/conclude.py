"""The end of a row and of a request in the first pass, whichever way the row was read.

`conclude_row` judges the row's draft token; `arrive` counts the request's finished rows, and the last one decides.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.decide import NOTHING, decide, write_verdict
from kernels.judge import PASSED, judge


@triton.jit
def row_address(target, tokens, request, index):
    """Address of the row after `index` draft tokens; int64 before it is multiplied."""
    if target.first_rows is None:
        row = request.to(tl.int64) * (tokens.width + 1) + index
    else:
        row = tl.load(target.first_rows + request).to(tl.int64) + index
    return target.logits + row * target.stride


@triton.jit
def shared_now(counter):
    """The present value, at least 0, of a counter that other programs raise meanwhile; the same for all threads.

    A scalar load is made by every thread for itself. Of a value that changes, some would see the old and some the new
    one, take different branches, and meet at different barriers.
    """
    return tl.atomic_max(counter, 0, sem="relaxed")


@triton.jit
def stop_index(tokens, state, request):
    """Index of the first draft token known to fail; K + 1 while none is."""
    return tokens.width + 1 - shared_now(state.stops + request)


@triton.jit
def conclude_row(
    target, tokens, rule, rows, state, temperature, request, index, count, prepared, stats,
    METHOD: tl.constexpr, SKIPS: tl.constexpr,
):  # fmt: skip
    """Keep the statistics of a row (maximum, normalizer, threshold, argmax, entropy) and judge its draft token."""
    maximum, normalizer, threshold, argmax, _ = stats
    row = request.to(tl.int64) * (tokens.width + 1) + index
    tl.store(rows.maximum + row * rows.stride, maximum)
    tl.store(rows.normalizer + row * rows.stride, normalizer)
    tl.store(rows.threshold + row * rows.stride, threshold)
    tl.store(rows.argmax + row, argmax)
    if index < count:
        judgement = judge(target, rule, state, temperature, index, row, prepared, stats, METHOD)
        tl.store(state.judgements + row, judgement)
        if SKIPS:
            if judgement != PASSED:
                tl.atomic_max(state.stops + request, tokens.width + 1 - index, sem="relaxed")


@triton.jit
def is_last(counter, num_arrivals):
    """Count one arrival; true for the last one, which then sees what all others wrote, and leaves the counter at 0."""
    tl.debug_barrier()
    last = tl.atomic_add(counter, 1, sem="release") == num_arrivals - 1
    if last:
        tl.atomic_add(counter, -num_arrivals, sem="acquire")
        tl.debug_barrier()
    return last


@triton.jit
def arrive(
    tokens, streams, rows, state, output, temperature, request, count,
    METHOD: tl.constexpr, READS_DRAFT: tl.constexpr, WIDTH_PADDED: tl.constexpr,
):  # fmt: skip
    """Count one more row of the request as finished, read or not; the last one decides and leaves the counters at 0."""
    if is_last(state.request_arrivals + request, count + 1):
        tl.store(state.stops + request, 0)
        decide(tokens, streams, rows, state, output, temperature, request, count, METHOD, READS_DRAFT, WIDTH_PADDED)


@triton.jit
def skip_slot(tokens, state, output, request, WIDTH_PADDED: tl.constexpr):
    """The verdict of a padded slot."""
    tl.store(state.plans + request, NOTHING)
    write_verdict(tokens, output, request, -1, False, WIDTH_PADDED)
