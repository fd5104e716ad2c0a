"""Few requests: the second pass also decides, and the first then only sums chunks (kernels.chain.row_reduce).

With few requests a round takes as long as its longest chain of dependent reads. So the first pass counts no arrivals,
and no decision goes through memory: every program of this pass combines the chunks of all rows of its request, tests
all draft tokens at once and reaches the same decision (kernels.chain.request_rows). Everything but the sums is loaded
before the first pass ends, and what does not depend on them is worked out.
Then the program weighs its chunks of the rows at the rejected position, and the request's last program draws the next
token. The price is that rows after a rejection are read too.

Decisions and weights come from the functions of the two other passes (acceptance, accept_count, residual,
sample_next).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

from ..launch.workspace import SHORT_CHUNK
from ..methods import MethodTraits
from ..methods.hooks import Hooks
from ..random.device_streams import load_stream
from ..rows.addresses import draft_slot
from ..rows.softmax_weights import inverse, scale
from .accept_count import FROM_RESIDUAL, UNDECIDED, decide_loaded, entry, load_token_ids, store_verdict
from .acceptance import accept_or_reject
from .launch_args import Round
from .request_rows import anchored, combine_rows, compare_drafts, prepare_all
from .residual import open_loaded_rows
from .residual_sample import weigh_chunks
from .row_epilogue import is_last_of_few, served_count, write_padding
from .sample_next import load_masses, sample_next, sum_lanes

MANY_LATE, FEW_LATE = ((4, 2, 4), (8, 4, 4), (32, 8, 8)), ((8, 4, 4), (16, 8, 4))
"""Where the second pass decides, of rules with a limit and of rules that count: up to so many requests, the chunks that
a program weighs, and its warps.
When they were chosen block at 16 requests took 30.3 us with 8 chunks and 4 warps, 8 and 8 31.6, 4 and 4 32.8, where the
first pass decides 34.0 (H100); probabilistic at 4 15.8 with 2 and 4, 4 and 4 16.1 (H200)."""
MAX_CHUNK_SUMS = 512
"""Sums of chunks that a program of the deciding pass holds, at most."""


def late_programs(hooks: Hooks, traits: MethodTraits) -> tuple[tuple[int, int, int], ...]:
    """Those of a rule that tests its draft tokens by sums alone and emits from the residual; none of others."""
    if not hooks.needs_sums_alone or traits.emits_from_target:
        return ()
    return MANY_LATE if hooks.count is None else FEW_LATE


def decides_late(round_: Round) -> bool:
    """Whether the first pass only sums, and the second decides."""
    shape = round_.shape
    if round_.draft.logits is None or round_.truncates or round_.is_masked or shape.chunk == SHORT_CHUNK:
        return False
    most = max((most for most, *_ in late_programs(round_.hooks, round_.traits)), default=0)
    num_sums = triton.next_power_of_2(shape.width + 1) * shape.chunks_padded
    return shape.num_requests <= most and num_sums <= MAX_CHUNK_SUMS


def late_program(round_: Round) -> tuple[int, int]:
    """Chunks that a program of the deciding pass weighs, and its warps; only where `decides_late`."""
    shape = round_.shape
    parts, num_warps = next(
        each[1:] for each in late_programs(round_.hooks, round_.traits) if shape.num_requests <= each[0]
    )
    if round_.row_traits.dtype == torch.float32 or not round_.row_traits.is_aligned:
        # no registers are left for several chunks of a warp
        parts = min(parts, num_warps)
    return min(parts, shape.chunks_padded), min(num_warps, shape.chunks_padded)


@triton.jit
def _open(
    target, draft, tokens, temperature, request, slot, index, plan, columns, of_target, of_draft, log_ratios, ahead,
    METHOD: tl.constexpr,
):  # fmt: skip
    """kernels.chain.residual.open_rows from the vectors of all rows.

    Args:
        ahead: (1 / S_q of all draft rows, the two parts of the scale).
    """
    stats = (
        entry(of_target[0], columns, index),
        entry(of_target[1], columns, index),
        tl.full((), -float("inf"), tl.float32),
    )
    drafted = (
        # Without a draft row the maximum may be -inf, and weights relative to it NaN.
        tl.where(plan >= FROM_RESIDUAL, entry(of_draft[0], columns, index), 0.0),
        entry(of_draft[1], columns, index),
        None,
    )
    return open_loaded_rows(
        target, draft, tokens, temperature, request, slot, index, plan, stats, drafted,
        entry(log_ratios, columns, index), METHOD, True, (entry(ahead[0], columns, index), ahead[1]),
    )  # fmt: skip


@triton.jit
def _small_batch_kernel(
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
    # a mask that is no constant, so that the loads stay here (see kernels.rows.addresses)
    stream = load_stream(streams, request, request < tokens.num_requests)
    slot = draft_slot(draft, request, True)
    columns = tl.arange(0, WIDTH_PADDED)
    token_ids = load_token_ids(tokens, request, columns)
    exceeds = tl.load(tokens.counts + request) > tokens.width
    logits, draft_logits, compared, at, uniform_numbers, next_uniforms = prepare_all(
        target, draft, tokens, request, columns, count, stream, temperature, slot, token_ids, purpose
    )
    inverted = inverse(temperature)
    high, low = scale(temperature)
    if OVERLAPS:
        inverted, next_uniforms = anchored(inverted), anchored(next_uniforms)
        high, low = anchored(high), anchored(low)
    if not SUMS_DRAFTS:
        kept = tl.where(columns < count, temperature, 0.0) > 0
        of_draft = (
            tl.load(draft.maximum + at, mask=kept, other=0.0),
            tl.load(draft.threshold + at, mask=kept, other=0.0),
            tl.load(draft.normalizer + at, mask=kept, other=1.0),
        )
        proposed, limits, inverse_of_draft = compare_drafts(
            rule, columns, draft_logits, of_draft, uniform_numbers, compared, temperature, inverted, METHOD
        )
        if OVERLAPS:
            limits, inverse_of_draft = anchored(limits), anchored(inverse_of_draft)
            if METHOD.count is not None:
                proposed, uniform_numbers = anchored(proposed), limits
    if OVERLAPS:
        gdc_wait()
    if count >= 0:
        row = request.to(tl.int64) * (tokens.width + 1)
        if SUMS_DRAFTS:
            cell = row + (row * 0 + tokens.num_requests) * (tokens.width + 1)
            # at temperature 0 no draft row is looked at
            num_rows = tl.where(temperature != 0, count, 0)
            found = combine_rows(
                rows, cell, columns, num_rows, temperature, inverted, None, CHUNKS_PADDED, WIDTH_PADDED
            )
            of_draft = found[0], tl.full(found[0].shape, -float("inf"), tl.float32), found[1]
            proposed, limits, inverse_of_draft = compare_drafts(
                rule, columns, draft_logits, of_draft, uniform_numbers, compared, temperature, inverted, METHOD
            )
        ahead = inverse_of_draft, (high, low)
        maximum, normalizer, argmax, weights = combine_rows(
            rows, row, columns, count + 1, temperature, inverted, logits, CHUNKS_PADDED, WIDTH_PADDED
        )
        stats = (
            maximum,
            normalizer,
            tl.full(maximum.shape, -float("inf"), tl.float32),
            argmax,
            tl.full(normalizer.shape, 0.0, tl.float64),
        )
        judged, target_logprobs = accept_or_reject(
            target, rule, temperature, columns, (token_ids, logits, proposed, uniform_numbers), stats, METHOD,
            (limits, weights),
        )  # fmt: skip
        index, plan, needed, invalid, log_ratios = decide_loaded(
            rule, columns, token_ids, judged, normalizer, target_logprobs, proposed, uniform_numbers, temperature,
            count, METHOD, True, WIDTH_PADDED, False,
        )  # fmt: skip
        position = index
        is_mine = (order == 0) & (plan >= FROM_RESIDUAL)
        num_programs = NUM_GROUPS
        if METHOD.count is not None:
            position = tokens.width - 1 - order
            is_mine = ((needed >> position) & 1) != 0
            num_programs = NUM_GROUPS * tl.sum((needed >> tl.arange(0, 32)) & 1, axis=0)
        emits = (plan < FROM_RESIDUAL) & (group == 0) & (order == 0)
        opened = _open(
            target, draft, tokens, temperature, request, slot, position, plan, columns, (maximum, normalizer),
            of_draft, log_ratios, ahead, METHOD,
        )  # fmt: skip
        if is_mine:
            chunks = group * PARTS + tl.arange(0, PARTS)
            masses = weigh_chunks(
                target, draft, opened, chunks, stream[0], stream[1] + position,
                True, False, PARTS, CHUNK, GROUP, UNROLL, SPREAD, METHOD, rule,
            )[0]  # fmt: skip
            if METHOD.count is not None:
                places = (request.to(tl.int64) * state.num_positions + position) * rows.num_chunks + chunks
            else:
                places = request.to(tl.int64) * rows.num_chunks + chunks
            tl.store(state.masses + places, masses, mask=chunks < rows.num_chunks)
            emits = is_last_of_few(state.request_arrivals + request, num_programs)
        if emits:
            if METHOD.count is not None:
                if plan == UNDECIDED:
                    for back in range(1, tokens.width):
                        position = tokens.width - back
                        if (((needed >> position) & 1) != 0) & (index == 0):
                            ratio = tl.exp(entry(log_ratios, columns, position))
                            place = request.to(tl.int64) * state.num_positions + position
                            mass = sum_lanes(state.masses + place * rows.num_chunks, rows.num_chunks, CHUNKS_PADDED)
                            mass = mass * ratio / entry(normalizer, columns, position)
                            if METHOD.mass_passes(rule, entry(uniform_numbers, columns, position - 1), mass, ratio):
                                index = position
            masses_row = request.to(tl.int64) * state.num_positions
            if METHOD.count is not None:
                masses_row += index
                opened = _open(
                    target, draft, tokens, temperature, request, slot, index, plan, columns, (maximum, normalizer),
                    of_draft, log_ratios, ahead, METHOD,
                )  # fmt: skip
            num_summed = tl.where(plan >= FROM_RESIDUAL, rows.num_chunks, 0)
            masses = load_masses(state.masses + masses_row * rows.num_chunks, num_summed, CHUNKS_PADDED)
            store_verdict(tokens, output, request, columns, token_ids, index, invalid | exceeds)
            sample_next(
                target, draft, tokens, temperature, rows, state, output, request, slot, index, plan, masses_row, 0,
                opened, entry(argmax, columns, index), None, entry(next_uniforms, columns, index),
                METHOD, True, False, CHUNK, CHUNKS_PADDED, masses, rule,
            )  # fmt: skip
    elif (group == 0) & (order == 0):
        write_padding(target, tokens, output, request, count, WIDTH_PADDED)
