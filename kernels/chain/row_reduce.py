"""First pass: every target row is read once, in chunks; then its draft token is tested, and its request decided.

    chunk    maximum m_b and sum of weights s_b = sum exp((x - m_b) / T)        one program, several chunks
    row      M = max m_b, S = sum s_b exp((m_b - M) / T); test X                 the row's last program
    request  number of accepted tokens; next token, or plan of the second pass  the last row's last program

Where the statistics of the drafts' rows were not kept, other programs sum these rows beside the target's, also chunk by
chunk, and the row's last program concludes both.

Programs are ordered by position: the rows after the first draft tokens come first. A rule that stops at the
first failure lets the programs of later rows see it and read nothing; which rows are read then depends on timing,
what comes out does not, because nothing after the failure is used.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents

from ..random.device_streams import load_stream
from ..rows.addresses import draft_row, prefetch, row_address
from ..rows.chunks import load_early, read_group
from ..rows.gumbel_argmax import finish
from ..rows.softmax_weights import inverse
from ..rows.token_mask import target_mask_row
from .acceptance import draft_logprob, keep_prepared, load_prepared, load_proposal, prepare
from .row_epilogue import (
    arrive,
    conclude_only_row,
    conclude_row,
    is_last,
    is_last_of_few,
    is_padding,
    served_count,
    skip_slot,
    stop_index,
)
from .sample_next import load_chunks, load_uniform, next_uniform


@triton.jit
def combine_chunks(
    rows, row, temperature, loaded, TYPICAL: tl.constexpr, MAY_BE_GREEDY: tl.constexpr, CHUNKS_PADDED: tl.constexpr
):
    """(maximum, normalizer, argmax, entropy) of a row whose chunks are all there; normalizer NaN if invalid.

    Args:
        loaded: the maxima and sums of the chunks, from `load_chunks`.
        MAY_BE_GREEDY: the temperature may be 0.
    """
    maxima, sums = loaded
    chunks = tl.arange(0, CHUNKS_PADDED)
    maximum = tl.max(maxima, axis=0)
    distances = (maxima - maximum).to(tl.float64)
    factors = tl.exp(distances * inverse(temperature))
    normalizer = tl.sum(sums * factors, axis=0)
    argmax = tl.full((), -1, tl.int32)
    if MAY_BE_GREEDY:
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
def _draft_cells(tokens, row):
    """Where the chunks of the draft row beside a target row are kept: after those of all target rows."""
    return row + (row * 0 + tokens.num_requests) * (tokens.width + 1)


@triton.jit
def _conclude_draft_row(draft, rows, at, temperature, chunks, prepared, CHUNKS_PADDED: tl.constexpr):
    """Keep the statistics of a draft row whose chunks are all there; returns `prepared` with log q(X).

    Args:
        at: of the row's statistics, from kernels.rows.addresses.draft_row.
        chunks: of the row, from `load_chunks`.
        prepared: from kernels.chain.acceptance.prepare, with the draft logit.
    """
    token, logit, draft_token_logit, uniform_number = prepared
    maximum, normalizer, _, _ = combine_chunks(rows, 0, temperature, chunks, False, False, CHUNKS_PADDED)
    threshold = tl.full((), -float("inf"), tl.float32)
    tl.store(draft.maximum + at, maximum)
    tl.store(draft.normalizer + at, normalizer)
    tl.store(draft.threshold + at, threshold)
    proposed = draft_logprob(draft_token_logit.to(tl.float32), maximum, normalizer, threshold, temperature)
    return token, logit, proposed, uniform_number


@triton.jit
def _row_reduce_kernel(
    target, draft, tokens, temperatures, cutting, streams, rule, rows, state, output, purpose,
    METHOD: tl.constexpr,
    SKIPS: tl.constexpr,
    READS_DRAFT: tl.constexpr,
    DRAFTED: tl.constexpr,
    APART: tl.constexpr,
    SUMS_DRAFTS: tl.constexpr,
    DECIDES: tl.constexpr,
    IS_SMALL: tl.constexpr,
    NUM_GROUPS: tl.constexpr,
    SETS: tl.constexpr,
    PARTS: tl.constexpr,
    CHUNK: tl.constexpr,
    GROUP: tl.constexpr,
    UNROLL: tl.constexpr,
    EARLY: tl.constexpr,
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
    PROGRAMS: tl.constexpr = NUM_GROUPS * (1 + SUMS_DRAFTS) + APART
    request = tl.program_id(0) // PROGRAMS
    group = tl.program_id(0) % PROGRAMS - APART
    index = tl.program_id(1)
    early = None
    if EARLY > 0:
        tl.static_assert(APART == 0, "a program that only prepares reads no row")
        own_row = row_address(target, tokens, request, index)
        early = load_early(own_row, group * PARTS, target.vocab_size, PARTS, CHUNK, GROUP, EARLY)
    # All scalars at once, ahead of every branch (see kernels.rows.addresses).
    temperature = tl.load(temperatures + request, mask=request < tokens.num_requests, other=1.0)
    count = served_count(tokens, request, temperature, cutting, False)
    stop = tokens.width + 1
    row_logits = row_address(target, tokens, request, index)
    if IS_SMALL and target.first_rows is None:
        # Ahead of the scalars, on which every read of the row waits.
        prefetch(row_logits, tl.maximum(group, 0) * SETS * PARTS * CHUNK, target.vocab_size, SETS * PARTS * CHUNK)
    mask = (
        target.mask_words,
        target.mask_stride,
        target.num_mask_words,
        target.mask_token_ids,
        target_mask_row(target, tokens, request, index, index <= count),
    )
    prepares = group == -APART
    if not DECIDES:
        prepares = group < 0
    stream = load_stream(streams, request, prepares)
    if SUMS_DRAFTS:
        # Also the programs that read the draft row need its slot.
        proposal = load_proposal(draft, tokens, request, index, True)
    else:
        proposal = load_proposal(draft, tokens, request, index, prepares)
    if SKIPS:
        stop = stop_index(tokens, state, request)
    num_arrivals = PROGRAMS
    part_of_row = True
    cells = request.to(tl.int64) * (tokens.width + 1) + index
    if SUMS_DRAFTS:
        # The row after the last draft token has no draft row, and at temperature 0 none is compared with.
        has_draft_row = (index < count) & (temperature != 0)
        num_arrivals = tl.where(has_draft_row, PROGRAMS, NUM_GROUPS + APART)
        of_draft = group >= NUM_GROUPS
        part_of_row = has_draft_row | (of_draft == 0)
        draft_logits, draft_stats = draft_row(draft, proposal[1], index)
        if of_draft:
            row_logits = draft_logits
            group -= NUM_GROUPS
            mask = (mask[0], mask[1], mask[2], mask[3], tl.full((), -1, tl.int64))
            cells = _draft_cells(tokens, cells)
    if (index <= count) & part_of_row:
        row = request.to(tl.int64) * (tokens.width + 1) + index
        if index <= stop:
            if EMITS and METHOD.noise != "coupled":
                if prepares:
                    tl.store(state.next_uniforms + row, next_uniform(stream, index, count, purpose))
            if DRAFTED:
                if prepares & (index < count):
                    prepared = prepare(
                        target, draft, proposal, stream, temperature, index, row_logits, mask, METHOD, SUMS_DRAFTS
                    )
                    keep_prepared(state, row, prepared)
            if group >= 0:
                if temperature == 0:
                    read_group(
                        target, rows, state, streams, output, row_logits, mask, request, index, cells, temperature,
                        group, METHOD.statistic == "entropy", METHOD.noise == "coupled", True, SETS, PARTS, CHUNK,
                        GROUP, 1, early, EARLY,
                    )  # fmt: skip
                else:
                    read_group(
                        target, rows, state, streams, output, row_logits, mask, request, index, cells, temperature,
                        group, METHOD.statistic == "entropy", METHOD.noise == "coupled", False, SETS, PARTS, CHUNK,
                        GROUP, UNROLL, early, EARLY,
                    )  # fmt: skip
        is_complete = False
        if DECIDES:
            if IS_SMALL and not DRAFTED:
                is_complete = is_last_of_few(state.row_arrivals + row, num_arrivals)
            else:
                is_complete = is_last(state.row_arrivals + row, num_arrivals)
        if is_complete:
            # Read at once, needed or not: a skipped row leaves an unused value here.
            if DRAFTED:
                prepared = load_prepared(state, row)
            uniform_number = load_uniform(state, row)
            if SUMS_DRAFTS:
                draft_chunks = load_chunks(rows, _draft_cells(tokens, row), CHUNKS_PADDED)
            chunks = load_chunks(rows, row, CHUNKS_PADDED)
            maximum, normalizer, argmax, statistic = combine_chunks(
                rows, row, temperature, chunks, METHOD.statistic == "entropy", True, CHUNKS_PADDED
            )
            if METHOD.noise == "coupled":
                if temperature > 0:
                    argmax = finish(state, row * rows.num_chunks, NUM_GROUPS, temperature, False, CHUNKS_PADDED)
            if METHOD.statistic == "own":
                if index < count:
                    _, mass, _, _ = combine_chunks(rows, row, temperature, chunks, False, False, CHUNKS_PADDED)
                    statistic = METHOD.of_chunks(
                        target, row_logits, mask, rule, chunks[0], maximum, mass, temperature,
                        PARTS * 32 * GROUP, CHUNK, GROUP, CHUNKS_PADDED,
                    )  # fmt: skip
            stats = (maximum, normalizer, tl.full((), -float("inf"), tl.float32), argmax, statistic)
            if DRAFTED:
                if SKIPS:
                    stop = stop_index(tokens, state, request)
                if index <= stop:
                    if SUMS_DRAFTS:
                        if has_draft_row:
                            prepared = _conclude_draft_row(
                                draft, rows, draft_stats, temperature, draft_chunks, prepared, CHUNKS_PADDED
                            )
                    conclude_row(
                        target, tokens, rule, rows, state, temperature, request, index, count, prepared, stats,
                        METHOD, SKIPS,
                    )  # fmt: skip
                arrive(
                    target, draft, tokens, streams, rule, rows, state, output, temperature, request, count,
                    METHOD, READS_DRAFT, EMITS, CHUNK, CHUNKS_PADDED, WIDTH_PADDED, EMITS_FROM_TARGET,
                )  # fmt: skip
            else:
                conclude_only_row(
                    target, draft, tokens, rule, rows, state, output, temperature, request, index, stats, chunks,
                    uniform_number, METHOD, EMITS, CHUNK, CHUNKS_PADDED,
                )  # fmt: skip
    elif is_padding(count, cutting) & (index == 0) & (group <= 0):
        if DECIDES:
            skip_slot(target, tokens, state, output, request, count, WIDTH_PADDED)
