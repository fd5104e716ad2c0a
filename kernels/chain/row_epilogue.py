"""The end of a row and of a request in the first pass, whichever way the row was read.

`conclude_row` tests the row's draft token; `arrive` counts the request's finished rows, and the last one decides.
Without drafts `conclude_only_row` takes the place of both: a row that is the only one is also the last. What follows a
decision is the next token, if the first pass knows enough to draw it (EMITS), else a plan for the second pass.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..rows.ragged_offsets import UNPLACED
from .accept_count import FROM_TARGET, NOTHING, decide, flag_excess, write_verdict
from .acceptance import PASSED, accept_or_reject
from .residual import open_rows
from .sample_next import load_chunks, load_uniform, sample_next

SERVED_ELSEWHERE: tl.constexpr = tl.constexpr(-(2**31))
"""In the place of a number of draft tokens: another launch serves the request."""


@triton.jit
def served_count(tokens, request, temperature, cutting, CUTS: tl.constexpr):
    """Number of draft tokens that are verified, in 0..K; negative where there is no request, where its rows are
    UNPLACED, and where a launch for the requests that cut, or for the others, leaves it out (SERVED_ELSEWHERE).

    Counters count up to this number: it must be one that its rows can reach, whatever the caller gives. `write_verdict`
    flags what is too large.

    Args:
        cutting: ([R] top_k, [R] top_p, [R] min_p); all None where one launch serves every request.
        CUTS: which of them the launch serves.
    """
    # In 64 bits, so that no count comes back as another one.
    count = tl.minimum(tl.maximum(tl.load(tokens.counts + request), UNPLACED), tokens.width).to(tl.int32)
    if cutting[0] is not None:
        top_k, top_p, min_p = (
            tl.load(cutting[0] + request),
            tl.load(cutting[1] + request),
            tl.load(cutting[2] + request),
        )
        cuts = (temperature > 0) & ((top_k > 0) | (top_p < 1) | (min_p > 0))
        count = tl.where(cuts == CUTS, count, SERVED_ELSEWHERE)
    return count


@triton.jit
def is_padding(count, cutting):
    """Whether `count`, from `served_count`, is that of a slot of which no row is read: all but SERVED_ELSEWHERE are, if
    negative."""
    padding = count < 0
    if cutting[0] is not None:
        padding = padding & (count != SERVED_ELSEWHERE)
    return padding


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
def keep_stats(rows, row, stats):
    """Store the statistics of a row: maximum, normalizer, threshold, argmax, the rule's statistic."""
    maximum, normalizer, threshold, argmax, _ = stats
    tl.store(rows.maximum + row * rows.stride, maximum)
    tl.store(rows.normalizer + row * rows.stride, normalizer)
    tl.store(rows.threshold + row * rows.stride, threshold)
    tl.store(rows.argmax + row, argmax)


@triton.jit
def load_stats(rows, row):
    """(maximum, normalizer, threshold) as `keep_stats` stored them."""
    return (
        tl.load(rows.maximum + row * rows.stride, cache_modifier=".cg"),
        tl.load(rows.normalizer + row * rows.stride, cache_modifier=".cg"),
        tl.load(rows.threshold + row * rows.stride, cache_modifier=".cg"),
    )


@triton.jit
def conclude_row(
    target, tokens, rule, rows, state, temperature, request, index, count, prepared, stats,
    METHOD: tl.constexpr, SKIPS: tl.constexpr,
):  # fmt: skip
    """Keep the statistics of a row (maximum, normalizer, threshold, argmax, its own) and test its draft token."""
    row = request.to(tl.int64) * (tokens.width + 1) + index
    keep_stats(rows, row, stats)
    if index < count:
        judgement, target_logprob = accept_or_reject(target, rule, temperature, index, prepared, stats, METHOD)
        if METHOD.count is not None:
            tl.store(state.target_logprobs + row, target_logprob)
            tl.store(state.draft_logprobs + row, prepared[2])
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
def is_last_of_few(counter, num_arrivals):
    """`is_last` with one atomic operation. Every program loses its cached lines by it: for programs that end here."""
    tl.debug_barrier()
    last = tl.atomic_add(counter, 1, sem="acq_rel") == num_arrivals - 1
    if last:
        tl.store(counter, 0)
    return last


@triton.jit
def emit_from_target(
    target, draft, tokens, rule, rows, state, output, temperature, request, index, plan, stats, argmax, chunks,
    uniform_number, METHOD: tl.constexpr, CHUNK: tl.constexpr, CHUNKS_PADDED: tl.constexpr,
):  # fmt: skip
    """Draw the next token from the target row after `index` accepted tokens, or from it without one token.

    Args:
        stats: of that row: maximum, normalizer, threshold.
    """
    # No draft row is looked into, nothing was summed for the token, and no Gumbel noise was compared for it.
    opened = open_rows(target, draft, tokens, state, temperature, request, 0, index, plan, stats, METHOD, False)
    sample_next(
        target, draft, tokens, temperature, rows, state, output, request, 0, index, plan, 0, 0,
        opened, argmax, chunks, uniform_number, METHOD, False, False, CHUNK, CHUNKS_PADDED, None, rule,
    )  # fmt: skip


@triton.jit
def conclude_only_row(
    target, draft, tokens, rule, rows, state, output, temperature, request, index, stats, chunks, uniform_number,
    METHOD: tl.constexpr, EMITS: tl.constexpr, CHUNK: tl.constexpr, CHUNKS_PADDED: tl.constexpr,
):  # fmt: skip
    """Decide a request without drafts from the statistics of its only row, which need not be read again.

    Args:
        index: 0.
        chunks: of the row, as `load_chunks` gives them.
        uniform_number: as `load_uniform` gives it.
    """
    maximum, normalizer, threshold, argmax, _ = stats
    keep_stats(rows, request.to(tl.int64), stats)
    invalid = normalizer != normalizer
    if METHOD.greedy_only:
        invalid = invalid | (temperature > 0)
    write_verdict(tokens, output, request, 0, invalid, 1)
    if EMITS:
        emit_from_target(
            target, draft, tokens, rule, rows, state, output, temperature, request, index, FROM_TARGET,
            (maximum, normalizer, threshold), argmax, chunks, uniform_number, METHOD, CHUNK, CHUNKS_PADDED,
        )  # fmt: skip
    else:
        tl.store(state.plans + request, FROM_TARGET)
        tl.store(state.needed + request, 0)


@triton.jit
def arrive(
    target, draft, tokens, streams, rule, rows, state, output, temperature, request, count,
    METHOD: tl.constexpr, READS_DRAFT: tl.constexpr, EMITS: tl.constexpr, CHUNK: tl.constexpr,
    CHUNKS_PADDED: tl.constexpr, WIDTH_PADDED: tl.constexpr, EMITS_FROM_TARGET: tl.constexpr,
):  # fmt: skip
    """Count one more row of the request as finished, read or not; the last one decides and leaves the counters at 0."""
    if is_last(state.request_arrivals + request, count + 1):
        tl.store(state.stops + request, 0)
        index, plan, needed = decide(
            tokens, streams, rule, rows, state, output, temperature, request, count, METHOD, READS_DRAFT, WIDTH_PADDED,
            EMITS_FROM_TARGET,
        )  # fmt: skip
        if EMITS:
            row = request.to(tl.int64) * (tokens.width + 1) + index
            emit_from_target(
                target, draft, tokens, rule, rows, state, output, temperature, request, index, plan,
                load_stats(rows, row), tl.load(rows.argmax + row, cache_modifier=".cg"),
                load_chunks(rows, row, CHUNKS_PADDED), load_uniform(state, row), METHOD, CHUNK, CHUNKS_PADDED,
            )  # fmt: skip
        else:
            tl.store(state.plans + request, plan)
            tl.store(state.needed + request, needed)
        flag_excess(tokens, output, request, WIDTH_PADDED)


@triton.jit
def skip_slot(target, tokens, state, output, request, count, WIDTH_PADDED: tl.constexpr):
    """Leave the second pass nothing to do for a slot of which no row is read, and write its verdict."""
    tl.store(state.plans + request, NOTHING)
    write_padding(target, tokens, output, request, count, WIDTH_PADDED)


@triton.jit
def write_padding(target, tokens, output, request, count, WIDTH_PADDED: tl.constexpr):
    """The verdict of a padded slot; or of a request that is UNPLACED, which is flagged and gets token 0."""
    if target.first_rows is not None:
        is_unplaced = count == UNPLACED
        write_verdict(tokens, output, request, tl.where(is_unplaced, 0, -1), is_unplaced, WIDTH_PADDED)
        token = output.token_ids + request.to(tl.int64) * (tokens.width + 1)
        tl.store(token, tl.full((), 0, tl.int64), mask=is_unplaced)
    else:
        write_verdict(tokens, output, request, -1, False, WIDTH_PADDED)
