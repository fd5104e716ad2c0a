"""Second pass: the token after the accepted ones, and what rules that count must compare to find their number.

Runs only where weights of the next token (kernels.chain.residual) must be summed that the first pass did not sum: of
the residual, of rows that something may be cut from. Only the rows at the rejected position are read. A rule that
counts, such as block, names the positions whose residual mass it needs,

    Z_i = sum_x [P_i p_{i+1}(x) - q_{i+1}(x)]+,    i passes by the rule's test of u_i, Z_i and P_i:

the last first, so that an earlier one can be left out once a later one has passed.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

from ..random.device_streams import ACCEPT, coupled_high_words, load_stream, uniform
from ..rows.addresses import draft_slot
from ..rows.gumbel_argmax import gumbel_argmax, keep_leader, no_leader
from .accept_count import FROM_RESIDUAL, NOTHING, UNDECIDED, flag_excess, write_verdict
from .residual import open_rows, residual_weights
from .row_epilogue import SERVED_ELSEWHERE, is_last, load_stats, served_count, shared_now
from .sample_next import load_chunks, next_uniform, sample_next


@triton.jit
def weigh_chunks(
    target, draft, opened, chunks, seed, position, READS_DRAFT: tl.constexpr, TRUNCATED: tl.constexpr,
    PARTS: tl.constexpr, CHUNK: tl.constexpr, GROUP: tl.constexpr, UNROLL: tl.constexpr, SPREAD: tl.constexpr = 1,
    METHOD: tl.constexpr = None, rule=None,
):  # fmt: skip
    """([PARTS] float64 masses of chunks; where noise decides, the Gumbel leader of their tokens).

    A chunk is read by SPREAD warps; where a program has fewer warps than chunks, a warp reads several.

    Args:
        METHOD: the hooks of a rule; None: weights are those of `residual_weights` without one.
    """
    LANES: tl.constexpr = 32 * SPREAD
    STEP: tl.constexpr = LANES * GROUP
    first = chunks[:, None] * CHUNK + tl.arange(0, STEP)[None, :]
    sums = tl.full((PARTS, LANES), 0.0, tl.float64)
    leader = no_leader()
    for step in tl.range(0, CHUNK, STEP, num_stages=1, loop_unroll_factor=UNROLL):
        offsets = first + step
        weights = residual_weights(target, draft, opened, offsets, READS_DRAFT, TRUNCATED, None, METHOD, rule)
        sums += tl.sum(tl.reshape(weights, (PARTS, LANES, GROUP)), axis=2).to(tl.float64)
        if METHOD is not None and METHOD.noise == "shared":
            high = coupled_high_words(seed, position, offsets)
            leader = gumbel_argmax(weights, high, offsets, None, leader, seed, position, None, True)
    return tl.sum(sums, axis=1), leader


@triton.jit
def _mass_passes(
    tokens, streams, rule, rows, state, request, index, masses_row, METHOD: tl.constexpr, CHUNKS_PADDED: tl.constexpr
):
    """Whether the test of a rule that counts after `index` accepted tokens passes, its chunk masses being complete."""
    row = request.to(tl.int64) * (tokens.width + 1) + index
    chunks = tl.arange(0, CHUNKS_PADDED)
    at = state.masses + masses_row * rows.num_chunks + chunks
    masses = tl.load(at, mask=chunks < rows.num_chunks, other=0.0, cache_modifier=".cg")
    ratio = tl.exp(tl.load(state.log_ratios + row))
    mass = tl.sum(masses, axis=0) * ratio / tl.load(rows.normalizer + row * rows.stride)
    position = tl.load(streams.positions + request) + index - 1
    uniform_number = uniform(tl.load(streams.seeds + request), ACCEPT, position, tl.load(streams.rounds + request))
    return METHOD.mass_passes(rule, uniform_number, mass, ratio)


@triton.jit
def _settle(
    tokens, streams, rule, rows, state, output, request, index, masses_row, needed,
    METHOD: tl.constexpr, CHUNKS_PADDED: tl.constexpr, WIDTH_PADDED: tl.constexpr,
):  # fmt: skip
    """Test one needed position; the last to arrive learns the number of accepted tokens, the others -1."""
    if index > 0:
        if shared_now(state.stops + request) <= index:
            if _mass_passes(tokens, streams, rule, rows, state, request, index, masses_row, METHOD, CHUNKS_PADDED):
                tl.atomic_max(state.stops + request, index, sem="relaxed")
    bits = tl.arange(0, 32)
    num_needed = tl.sum((needed >> bits) & 1, axis=0)
    num_accepted = tl.full((), -1, tl.int32)
    if is_last(state.request_arrivals + request, num_needed):
        num_accepted = tl.load(state.stops + request, cache_modifier=".cg")
        tl.debug_barrier()
        tl.store(state.stops + request, 0)
        write_verdict(tokens, output, request, num_accepted, False, WIDTH_PADDED)
        flag_excess(tokens, output, request, WIDTH_PADDED)
    return num_accepted


@triton.jit
def _residual_sample_kernel(
    target, draft, tokens, temperatures, cutting, streams, rows, state, output, purpose, rule,
    METHOD: tl.constexpr,
    READS_DRAFT: tl.constexpr,
    TRUNCATED: tl.constexpr,
    NUM_GROUPS: tl.constexpr,
    PARTS: tl.constexpr,
    CHUNK: tl.constexpr,
    GROUP: tl.constexpr,
    UNROLL: tl.constexpr,
    CHUNKS_PADDED: tl.constexpr,
    WIDTH_PADDED: tl.constexpr,
    OVERLAPS: tl.constexpr,
):  # fmt: skip
    request = tl.program_id(0) // NUM_GROUPS
    group = tl.program_id(0) % NUM_GROUPS
    order = tl.program_id(1)
    temperature = tl.load(temperatures + request)
    count = served_count(tokens, request, temperature, cutting, TRUNCATED)
    stream = load_stream(streams, request, True)
    slot = draft_slot(draft, request, True)
    if OVERLAPS:
        gdc_wait()
    plan = tl.load(state.plans + request)
    needed = tl.load(state.needed + request)
    index = tl.load(output.num_accepted + request).to(tl.int32)
    is_mine = (order == 0) & (plan != NOTHING)
    masses_row = request.to(tl.int64) * state.num_positions
    if METHOD.count is not None:
        if plan == UNDECIDED:
            index = state.num_positions - 1 - order
            is_mine = ((needed >> index) & 1) != 0
            masses_row += index
    row = request.to(tl.int64) * (tokens.width + 1) + index
    is_summed = plan >= FROM_RESIDUAL
    if TRUNCATED or METHOD.noise == "shared":
        is_summed = temperature > 0
    if cutting[0] is not None:
        is_mine = is_mine & (count != SERVED_ELSEWHERE)
    if is_mine & (is_summed | (group == 0)):
        emits = is_summed == 0
        opened = open_rows(
            target, draft, tokens, state, temperature, request, slot, index, plan, load_stats(rows, row),
            METHOD, READS_DRAFT,
        )  # fmt: skip
        uniform_number = next_uniform(stream, index, count, purpose)
        if is_summed:
            beaten = False
            if METHOD.count is not None:
                if plan == UNDECIDED:
                    beaten = shared_now(state.stops + request) > index
            if not beaten:
                chunks = group * PARTS + tl.arange(0, PARTS)
                masses, leader = weigh_chunks(
                    target, draft, opened, chunks, stream[0], stream[1] + index,
                    READS_DRAFT, TRUNCATED, PARTS, CHUNK, GROUP, UNROLL, 1, METHOD, rule,
                )  # fmt: skip
                at = state.masses + masses_row * rows.num_chunks + chunks
                tl.store(at, masses, mask=chunks < rows.num_chunks)
                if METHOD.noise == "shared":
                    keep_leader(state, row * rows.num_chunks + group, leader, True)
            if is_last(state.row_arrivals + row, NUM_GROUPS):
                emits = True
                if METHOD.count is not None:
                    if plan == UNDECIDED:
                        settled = _settle(
                            tokens, streams, rule, rows, state, output, request, index, masses_row, needed,
                            METHOD, CHUNKS_PADDED, WIDTH_PADDED,
                        )  # fmt: skip
                        emits = settled >= 0
                        if emits & (settled != index):
                            index = settled
                            masses_row = request.to(tl.int64) * state.num_positions + index
                            row = request.to(tl.int64) * (tokens.width + 1) + index
                            opened = open_rows(
                                target, draft, tokens, state, temperature, request, slot, index, plan,
                                load_stats(rows, row), METHOD, READS_DRAFT,
                            )  # fmt: skip
                            uniform_number = next_uniform(stream, index, count, purpose)
        if emits:
            chunks = None
            if not TRUNCATED:
                chunks = load_chunks(rows, row, CHUNKS_PADDED)
            argmax = tl.load(rows.argmax + row, cache_modifier=".cg")
            sample_next(
                target, draft, tokens, temperature, rows, state, output, request, slot, index, plan,
                masses_row, NUM_GROUPS, opened, argmax, chunks, uniform_number,
                METHOD, READS_DRAFT, TRUNCATED, CHUNK, CHUNKS_PADDED, None, rule,
            )  # fmt: skip
