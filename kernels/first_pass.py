"""First pass: every target row is read once, in chunks; then its draft token is tested, and its request decided.

    chunk    maximum m_b and sum of weights s_b = sum exp((x - m_b) / T)        one program, several chunks
    row      M = max m_b, S = sum s_b exp((m_b - M) / T); test X                 the row's last program
    request  number of accepted tokens; next token, or plan of the second pass  the last row's last program

Programs are ordered by position: the rows after the first draft tokens come first. A rule that stops at the
first failure lets the programs of later rows see it and read nothing; which rows are read then depends on timing,
what comes out does not, because nothing after the failure is used.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents

from .acceptance_test import keep_prepared, load_prepared, load_proposal, prepare
from .addresses import row_address
from .conclude import (
    arrive,
    conclude_only_row,
    conclude_row,
    is_last,
    is_padding,
    served_count,
    skip_slot,
    stop_index,
)
from .device_streams import load_stream
from .device_weights import inverse, scale, weigh
from .gumbel_argmax import finish, gumbel_argmax_of_logits, keep_leader, no_leader
from .row_words import load_logits
from .sample_next import load_chunks, load_uniform, next_uniform
from .token_mask import only_allowed, target_mask_row


@triton.jit
def _read_chunks(
    target, rows, output, row_logits, row, mask, temperature, first_chunk, seed, position, leader,
    METHOD: tl.constexpr, GREEDY: tl.constexpr, PARTS: tl.constexpr, CHUNK: tl.constexpr, GROUP: tl.constexpr,
    UNROLL: tl.constexpr,
):  # fmt: skip
    """Statistics of PARTS chunks of one row, a chunk for each warp; returns the Gumbel argmax of coupled noise.

    Every thread keeps a maximum and a sum of its own, in units of that maximum, until the chunk has been read: threads
    meet once a chunk and not once a step.
    """
    LANES: tl.constexpr = 32
    STEP: tl.constexpr = LANES * GROUP
    high, low = scale(temperature)
    chunks = first_chunk + tl.arange(0, PARTS)
    first = chunks[:, None] * CHUNK + tl.arange(0, STEP)[None, :]
    first_pairs = chunks[:, None] * (CHUNK // 2) + tl.arange(0, STEP // 2)[None, :]
    maximum = tl.full((PARTS, LANES), -float("inf"), tl.float32)
    sums = tl.full((PARTS, LANES), 0.0, tl.float64)
    moments = tl.full((PARTS, LANES), 0.0, tl.float64)
    places = tl.full((PARTS, LANES), 0, tl.int32)
    for step in tl.range(0, CHUNK, STEP, num_stages=1, loop_unroll_factor=UNROLL):
        offsets = first + step
        values = load_logits(row_logits, offsets, target.vocab_size, target.in_words)
        values = only_allowed(values, offsets, target.vocab_size, mask, GROUP)
        logits = tl.reshape(values, (PARTS, LANES, GROUP))
        largest = tl.max(logits, axis=2)
        higher = tl.maximum(maximum, largest)
        # While all is -inf any finite reference does; -inf minus -inf would be NaN.
        reference = tl.where(higher == -float("inf"), 0.0, higher)
        weights = weigh(logits, reference[:, :, None], high, low)
        shrink = weigh(maximum, reference, high, low).to(tl.float64)
        if METHOD == "typical":
            distances = logits - reference[:, :, None]
            moved = tl.where(sums > 0, sums * (maximum - reference).to(tl.float64), 0.0)
            added = tl.sum(tl.where(weights > 0, weights * distances, 0.0), axis=2).to(tl.float64)
            moments = shrink * (moments + moved) + added
        sums = sums * shrink + tl.sum(weights, axis=2).to(tl.float64)
        if GREEDY:
            of_group = tl.reshape(offsets, (PARTS, LANES, GROUP))
            found = tl.min(tl.where(logits == largest[:, :, None], of_group, target.vocab_size), axis=2)
            places = tl.where(largest > maximum, found, places)
        maximum = higher
        if METHOD == "coupled" and not GREEDY:
            leader = gumbel_argmax_of_logits(
                values, -float("inf"), offsets, first_pairs + step // 2, target.vocab_size, output.to_target_ids,
                leader, seed, position, temperature,
            )  # fmt: skip
    at = row * rows.num_chunks + chunks
    inside = chunks < rows.num_chunks
    highest = tl.max(maximum, axis=1)
    reference = tl.where(highest == -float("inf"), 0.0, highest)[:, None]
    shrink = weigh(maximum, reference, high, low).to(tl.float64)
    tl.store(rows.chunk_maximum + at, highest, mask=inside)
    tl.store(rows.chunk_sum + at, tl.sum(sums * shrink, axis=1), mask=inside)
    if METHOD == "typical":
        moved = tl.where(sums > 0, sums * (maximum - reference).to(tl.float64), 0.0)
        tl.store(rows.chunk_moment + at, tl.sum(shrink * (moments + moved), axis=1), mask=inside)
    if GREEDY:
        first_place = tl.min(tl.where(maximum == highest[:, None], places, target.vocab_size), axis=1)
        tl.store(rows.chunk_argmax + at, first_place, mask=inside)
    return leader


@triton.jit
def _read_group(
    target, rows, state, streams, output, row_logits, mask, request, index, row, temperature, group,
    METHOD: tl.constexpr, GREEDY: tl.constexpr, SETS: tl.constexpr, PARTS: tl.constexpr, CHUNK: tl.constexpr,
    GROUP: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """Read the chunks of one program, SETS times PARTS of them."""
    seed, position = tl.load(streams.seeds + request), tl.load(streams.positions + request) + index
    leader = no_leader()
    for part in range(SETS):
        leader = _read_chunks(
            target, rows, output, row_logits, row, mask, temperature, (group * SETS + part) * PARTS, seed, position,
            leader, METHOD, GREEDY, PARTS, CHUNK, GROUP, UNROLL,
        )  # fmt: skip
    if METHOD == "coupled":
        keep_leader(state, row * rows.num_chunks + group, leader, False)


@triton.jit
def _combine_chunks(rows, row, temperature, loaded, TYPICAL: tl.constexpr, CHUNKS_PADDED: tl.constexpr):
    """(maximum, normalizer, argmax, entropy) of a row whose chunks are all there; normalizer NaN if invalid.

    Args:
        loaded: the maxima and sums of the chunks, from `load_chunks`.
    """
    maxima, sums = loaded
    chunks = tl.arange(0, CHUNKS_PADDED)
    maximum = tl.max(maxima, axis=0)
    distances = (maxima - maximum).to(tl.float64)
    factors = tl.exp(distances * inverse(temperature))
    normalizer = tl.sum(sums * factors, axis=0)
    argmax = tl.full((), -1, tl.int32)
    if temperature == 0:
        first = tl.min(tl.where(maxima == maximum, chunks, CHUNKS_PADDED))
        first = tl.minimum(first, rows.num_chunks - 1)
        argmax = tl.load(rows.chunk_argmax + row * rows.num_chunks + first, cache_modifier=".cg")
        # 1, or NaN where the row has no distribution.
        normalizer = normalizer * 0.0 + 1.0
    entropy = tl.full((), 0.0, tl.float64)
    if TYPICAL:
        at = row * rows.num_chunks + chunks
        moments = tl.load(rows.chunk_moment + at, mask=chunks < rows.num_chunks, other=0.0, cache_modifier=".cg")
        moments = factors * (moments + tl.where(sums > 0, sums * distances, 0.0))
        entropy = tl.log(normalizer) - tl.sum(moments, axis=0) * inverse(temperature) / normalizer
        entropy = tl.where(temperature == 0, 0.0, entropy)
    return maximum, normalizer, argmax, entropy


@triton.jit
def _first_pass_kernel(
    target, draft, tokens, temperatures, cutting, streams, rule, rows, state, output, purpose,
    METHOD: tl.constexpr,
    SKIPS: tl.constexpr,
    READS_DRAFT: tl.constexpr,
    DRAFTED: tl.constexpr,
    APART: tl.constexpr,
    NUM_GROUPS: tl.constexpr,
    SETS: tl.constexpr,
    PARTS: tl.constexpr,
    CHUNK: tl.constexpr,
    GROUP: tl.constexpr,
    UNROLL: tl.constexpr,
    CHUNKS_PADDED: tl.constexpr,
    WIDTH_PADDED: tl.constexpr,
    EMITS: tl.constexpr,
    EMITS_FROM_TARGET: tl.constexpr,
    OVERLAPS: tl.constexpr,
):  # fmt: skip
    if OVERLAPS:
        gdc_launch_dependents()
    # Whatever does not depend on the sums is prepared by the first program of a row, while the others read it: the
    # uniform number of the next token, and the test of a draft token, for which there is a program of its own
    # (APART) unless rows are so short that it would be half of the programs.
    PROGRAMS: tl.constexpr = NUM_GROUPS + APART
    request = tl.program_id(0) // PROGRAMS
    group = tl.program_id(0) % PROGRAMS - APART
    index = tl.program_id(1)
    # All scalars at once, ahead of every branch (see kernels.addresses).
    temperature = tl.load(temperatures + request, mask=request < tokens.num_requests, other=1.0)
    count = served_count(tokens, request, temperature, cutting, False)
    stop = tokens.width + 1
    row_logits = row_address(target, tokens, request, index)
    mask = (
        target.mask_words,
        target.mask_stride,
        target.num_mask_words,
        target.mask_token_ids,
        target_mask_row(target, tokens, request, index, index <= count),
    )
    prepares = group == -APART
    stream = load_stream(streams, request, prepares)
    proposal = load_proposal(draft, tokens, request, index, prepares)
    if SKIPS:
        stop = stop_index(tokens, state, request)
    if index <= count:
        row = request.to(tl.int64) * (tokens.width + 1) + index
        if index <= stop:
            if EMITS and METHOD != "coupled":
                if prepares:
                    tl.store(state.next_uniforms + row, next_uniform(stream, index, count, purpose))
            if DRAFTED:
                if prepares & (index < count):
                    prepared = prepare(target, draft, proposal, stream, temperature, index, row_logits, mask, METHOD)
                    keep_prepared(state, row, prepared)
            if group >= 0:
                if temperature == 0:
                    _read_group(
                        target, rows, state, streams, output, row_logits, mask, request, index, row, temperature,
                        group, METHOD, True, SETS, PARTS, CHUNK, GROUP, 1,
                    )  # fmt: skip
                else:
                    _read_group(
                        target, rows, state, streams, output, row_logits, mask, request, index, row, temperature,
                        group, METHOD, False, SETS, PARTS, CHUNK, GROUP, UNROLL,
                    )  # fmt: skip
        if is_last(state.row_arrivals + row, PROGRAMS):
            # Read at once, needed or not: a skipped row leaves an unused value here.
            if DRAFTED:
                prepared = load_prepared(state, row)
            uniform_number = load_uniform(state, row)
            chunks = load_chunks(rows, row, CHUNKS_PADDED)
            maximum, normalizer, argmax, entropy = _combine_chunks(
                rows, row, temperature, chunks, METHOD == "typical", CHUNKS_PADDED
            )
            if METHOD == "coupled":
                if temperature > 0:
                    argmax = finish(state, row * rows.num_chunks, NUM_GROUPS, temperature, False, CHUNKS_PADDED)
            stats = (maximum, normalizer, tl.full((), -float("inf"), tl.float32), argmax, entropy)
            if DRAFTED:
                if SKIPS:
                    stop = stop_index(tokens, state, request)
                if index <= stop:
                    conclude_row(
                        target, tokens, rule, rows, state, temperature, request, index, count, prepared, stats,
                        METHOD, SKIPS,
                    )  # fmt: skip
                arrive(
                    target, draft, tokens, streams, rows, state, output, temperature, request, count,
                    METHOD, READS_DRAFT, EMITS, CHUNK, CHUNKS_PADDED, WIDTH_PADDED, EMITS_FROM_TARGET,
                )  # fmt: skip
            else:
                conclude_only_row(
                    target, draft, tokens, rows, state, output, temperature, request, index, stats, chunks,
                    uniform_number, METHOD, EMITS, CHUNK, CHUNKS_PADDED,
                )  # fmt: skip
    elif is_padding(count, cutting) & (index == 0) & (group <= 0):
        skip_slot(target, tokens, state, output, request, count, WIDTH_PADDED)
