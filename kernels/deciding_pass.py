"""The second pass of few requests, which also decides; the first pass then only sums chunks (kernels.first_pass).

With few requests a round takes as long as its longest chain of dependent reads. So the first pass counts no arrivals,
and no decision goes through memory: every program of this pass combines the chunks of all rows of its request, tests
all draft tokens at once and reaches the same decision. Everything but the sums is loaded before the first pass ends.
Then the program weighs its chunks of the rows at the rejected position, and the request's last program draws the next
token. The price is that rows after a rejection are read too.

Decisions and weights come from the functions of the two other passes (acceptance_test, decide, residual_weights,
sample_next).
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

from .acceptance_test import accept_or_reject, draft_logit, draft_logprob
from .addresses import draft_slot, row_address
from .conclude import is_last_of_few, served_count, write_padding
from .decide import FROM_RESIDUAL, UNDECIDED, decide_loaded, entry, load_token_ids, position_passes, store_verdict
from .device_streams import ACCEPT, BONUS, RESIDUAL, load_stream, uniform
from .device_weights import inverse
from .residual_weights import open_loaded_rows
from .sample_next import LANES, load_chunks, load_lanes, sample_next, sum_lanes
from .second_pass import weigh_chunks
from .token_mask import allowed_logit, target_mask_row


@triton.jit
def _prepare_all(target, draft, tokens, request, columns, count, stream, temperature, slot, token_ids, purpose):
    """kernels.acceptance_test.prepare for every draft token at once, without log q(X).

    Returns:
        (target logits and draft logits in float32; where the draft logits are compared with; offsets of the draft rows'
        statistics; uniform numbers of the tests, and of the next token after each number of accepted ones, in float64).
    """
    drafted = columns < count
    known = drafted & (token_ids >= 0) & (token_ids < target.vocab_size)
    mask = (
        target.mask_words,
        target.mask_stride,
        target.num_mask_words,
        target.mask_token_ids,
        target_mask_row(target, tokens, request, columns, drafted),
    )
    logits = tl.load(row_address(target, tokens, request, columns) + token_ids, mask=known, other=-float("inf")).to(
        tl.float32
    )
    logits = allowed_logit(logits, token_ids, known, mask)
    # Triton's interpreter does not broadcast a scalar in `&`.
    compared = tl.where(known, temperature, 0.0) > 0
    draft_logits, at = draft_logit(draft, slot, columns, token_ids, compared)
    seed, position, round_index = stream
    uniform_numbers = uniform(seed, ACCEPT, position + columns, round_index)
    purposes = tl.where(purpose == 0, tl.where(drafted, RESIDUAL, BONUS), purpose)
    next_uniforms = uniform(seed, purposes, position + columns, round_index)
    return logits, draft_logits, compared, at, uniform_numbers, next_uniforms


@triton.jit
def _add_each(first, second, third, fourth, other_first, other_second, other_third, other_fourth):
    """The sums of four numbers each."""
    return first + other_first, second + other_second, third + other_third, fourth + other_fourth


@triton.jit
def _combine_rows(
    rows, first_cell, columns, num_wanted, temperature, CHUNKS_PADDED: tl.constexpr, WIDTH_PADDED: tl.constexpr
):  # fmt: skip
    """(maximum, normalizer, argmax) of the first rows, vectors; kernels.first_pass combines a row at a time.

    Every warp finds the maxima of all rows, a chunk a lane, so that none waits for another. The factors in float64 are
    shared out over all threads, because repeating them takes longer than to wait, once for four rows.
    """
    maximum = tl.full(columns.shape, -float("inf"), tl.float32)
    normalizer = tl.full(columns.shape, 0.0, tl.float64)
    argmax = tl.full(columns.shape, -1, tl.int32)
    places = tl.arange(0, WIDTH_PADDED * CHUNKS_PADDED)
    row_of, chunk_of = places // CHUNKS_PADDED, places % CHUNKS_PADDED
    at = (first_cell + row_of) * rows.num_chunks + chunk_of
    inside = (row_of < num_wanted) & (chunk_of < rows.num_chunks)
    maxima = tl.load(rows.chunk_maximum + at, mask=inside, other=-float("inf"), cache_modifier=".cg")
    sums = tl.load(rows.chunk_sum + at, mask=inside, other=0.0, cache_modifier=".cg")
    highest = tl.full(places.shape, -float("inf"), tl.float32)
    for row in tl.static_range(WIDTH_PADDED):
        num_chunks = tl.where(row < num_wanted, rows.num_chunks, 0)
        cell = (first_cell + row) * rows.num_chunks
        largest = tl.full((LANES,), -float("inf"), tl.float32)
        for first in tl.static_range(0, CHUNKS_PADDED, LANES):
            largest = tl.maximum(largest, load_lanes(rows.chunk_maximum + cell, first, num_chunks, -float("inf")))
        of_row = tl.max(largest, axis=0)
        maximum = tl.where(columns == row, of_row, maximum)
        highest = tl.where(row_of == row, of_row, highest)
    masses = sums * tl.exp((maxima - highest).to(tl.float64) * inverse(temperature))
    for row in tl.static_range(0, WIDTH_PADDED, 4):
        totals = tl.reduce(
            (
                tl.where(row_of == row, masses, 0.0),
                tl.where(row_of == row + 1, masses, 0.0),
                tl.where(row_of == row + 2, masses, 0.0),
                tl.where(row_of == row + 3, masses, 0.0),
            ),
            0,
            _add_each,
        )
        for beside in tl.static_range(4):
            normalizer = tl.where(columns == row + beside, totals[beside], normalizer)
    if temperature == 0:
        for row in tl.static_range(WIDTH_PADDED):
            num_chunks = tl.where(row < num_wanted, rows.num_chunks, 0)
            cell = (first_cell + row) * rows.num_chunks
            largest_of_row = entry(maximum, columns, row)
            chosen = tl.full((LANES,), CHUNKS_PADDED, tl.int32)
            for first in tl.static_range(0, CHUNKS_PADDED, LANES):
                of_lane = load_lanes(rows.chunk_maximum + cell, first, num_chunks, -float("inf"))
                chunks = first + tl.arange(0, LANES)
                chosen = tl.minimum(chosen, tl.where(of_lane == largest_of_row, chunks, CHUNKS_PADDED))
            place = tl.minimum(tl.min(chosen, axis=0), rows.num_chunks - 1)
            token = tl.load(rows.chunk_argmax + cell + place, mask=row < num_wanted, other=0, cache_modifier=".cg")
            argmax = tl.where(columns == row, token, argmax)
        # 1, or NaN where the row has no distribution.
        normalizer = normalizer * 0.0 + 1.0
    return maximum, normalizer, argmax


@triton.jit
def _open(
    target, draft, tokens, temperature, request, slot, index, plan, columns, of_target, of_draft, log_ratios,
    METHOD: tl.constexpr,
):  # fmt: skip
    """kernels.residual_weights.open_rows from the vectors of all rows."""
    stats = (
        entry(of_target[0], columns, index),
        entry(of_target[1], columns, index),
        tl.full((), -float("inf"), tl.float32),
    )
    drafted = (
        # Without a draft row the maximum may be -inf, and weights relative to it NaN.
        tl.where(plan >= FROM_RESIDUAL, entry(of_draft[0], columns, index), 0.0),
        entry(of_draft[1], columns, index),
        entry(of_draft[2], columns, index),
    )
    return open_loaded_rows(
        target, draft, tokens, temperature, request, slot, index, plan, stats, drafted,
        entry(log_ratios, columns, index), METHOD, True,
    )  # fmt: skip


@triton.jit
def _deciding_pass_kernel(
    target, draft, tokens, temperatures, streams, rule, rows, state, output, purpose,
    METHOD: tl.constexpr,
    SUMS_DRAFTS: tl.constexpr,
    NUM_GROUPS: tl.constexpr,
    PARTS: tl.constexpr,
    CHUNK: tl.constexpr,
    GROUP: tl.constexpr,
    UNROLL: tl.constexpr,
    SPREAD: tl.constexpr,
    CHUNKS_PADDED: tl.constexpr,
    WIDTH_PADDED: tl.constexpr,
    OVERLAPS: tl.constexpr,
):  # fmt: skip
    request = tl.program_id(0) // NUM_GROUPS
    group = tl.program_id(0) % NUM_GROUPS
    order = tl.program_id(1)
    temperature = tl.load(temperatures + request)
    count = served_count(tokens, request, temperature, (None, None, None), False)
    stream = load_stream(streams, request, True)
    slot = draft_slot(draft, request, True)
    columns = tl.arange(0, WIDTH_PADDED)
    token_ids = load_token_ids(tokens, request, columns)
    exceeds = tl.load(tokens.counts + request) > tokens.width
    logits, draft_logits, compared, at, uniform_numbers, next_uniforms = _prepare_all(
        target, draft, tokens, request, columns, count, stream, temperature, slot, token_ids, purpose
    )
    if not SUMS_DRAFTS:
        kept = tl.where(columns < count, temperature, 0.0) > 0
        of_draft = (
            tl.load(draft.maximum + at, mask=kept, other=0.0),
            tl.load(draft.threshold + at, mask=kept, other=0.0),
            tl.load(draft.normalizer + at, mask=kept, other=1.0),
        )
        proposed = draft_logprob(draft_logits, of_draft[0], of_draft[2], of_draft[1], temperature)
    if OVERLAPS:
        gdc_wait()
    if count >= 0:
        row = request.to(tl.int64) * (tokens.width + 1)
        if SUMS_DRAFTS:
            cell = row + (row * 0 + tokens.num_requests) * (tokens.width + 1)
            # at temperature 0 no draft row is looked at
            num_rows = tl.where(temperature != 0, count, 0)
            found = _combine_rows(rows, cell, columns, num_rows, temperature, CHUNKS_PADDED, WIDTH_PADDED)
            of_draft = found[0], tl.full(found[0].shape, -float("inf"), tl.float32), found[1]
            proposed = draft_logprob(draft_logits, of_draft[0], of_draft[2], of_draft[1], temperature)
        proposed = tl.where(compared, proposed, 0.0)
        maximum, normalizer, argmax = _combine_rows(
            rows, row, columns, count + 1, temperature, CHUNKS_PADDED, WIDTH_PADDED
        )
        stats = (
            maximum,
            normalizer,
            tl.full(maximum.shape, -float("inf"), tl.float32),
            argmax,
            tl.full(normalizer.shape, 0.0, tl.float64),
        )
        judged, target_logprobs = accept_or_reject(
            target, rule, temperature, columns, (token_ids, logits, proposed, uniform_numbers), stats, METHOD
        )
        index, plan, needed, invalid, log_ratios = decide_loaded(
            columns, token_ids, judged, normalizer, target_logprobs, proposed, uniform_numbers, temperature, count,
            METHOD, True, WIDTH_PADDED, False,
        )  # fmt: skip
        position = index
        is_mine = (order == 0) & (plan >= FROM_RESIDUAL)
        num_programs = NUM_GROUPS
        if METHOD == "block":
            position = tokens.width - 1 - order
            is_mine = ((needed >> position) & 1) != 0
            num_programs = NUM_GROUPS * tl.sum((needed >> tl.arange(0, 32)) & 1, axis=0)
        emits = (plan < FROM_RESIDUAL) & (group == 0) & (order == 0)
        opened = _open(
            target, draft, tokens, temperature, request, slot, position, plan, columns, (maximum, normalizer),
            of_draft, log_ratios, METHOD,
        )  # fmt: skip
        if is_mine:
            chunks = group * PARTS + tl.arange(0, PARTS)
            masses = weigh_chunks(
                target, draft, opened, chunks, stream[0], stream[1] + position,
                METHOD, True, False, PARTS, CHUNK, GROUP, UNROLL, SPREAD,
            )[0]  # fmt: skip
            if METHOD == "block":
                places = (request.to(tl.int64) * state.num_positions + position) * rows.num_chunks + chunks
            else:
                places = request.to(tl.int64) * rows.num_chunks + chunks
            tl.store(state.masses + places, masses, mask=chunks < rows.num_chunks)
            emits = is_last_of_few(state.request_arrivals + request, num_programs)
        if emits:
            if METHOD == "block":
                if plan == UNDECIDED:
                    for back in range(1, tokens.width):
                        position = tokens.width - back
                        if (((needed >> position) & 1) != 0) & (index == 0):
                            ratio = tl.exp(entry(log_ratios, columns, position))
                            place = request.to(tl.int64) * state.num_positions + position
                            mass = sum_lanes(state.masses + place * rows.num_chunks, rows.num_chunks, CHUNKS_PADDED)
                            mass = mass * ratio / entry(normalizer, columns, position)
                            if position_passes(entry(uniform_numbers, columns, position - 1), mass, ratio):
                                index = position
            masses_row = request.to(tl.int64) * state.num_positions
            if METHOD == "block":
                masses_row += index
                opened = _open(
                    target, draft, tokens, temperature, request, slot, index, plan, columns, (maximum, normalizer),
                    of_draft, log_ratios, METHOD,
                )  # fmt: skip
            store_verdict(tokens, output, request, columns, token_ids, index, invalid | exceeds)
            sample_next(
                target, draft, tokens, temperature, rows, state, output, request, slot, index, plan, masses_row, 0,
                opened, entry(argmax, columns, index), load_chunks(rows, row + index, CHUNKS_PADDED),
                entry(next_uniforms, columns, index), METHOD, True, False, CHUNK, CHUNKS_PADDED, True,
            )  # fmt: skip
    elif (group == 0) & (order == 0):
        write_padding(target, tokens, output, request, count, WIDTH_PADDED)
