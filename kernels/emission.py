"""Second pass: the token after the accepted ones, and what block verification must compare to find their number.

The next token has weights w(x) = [p(x) / S - k q(x)]+ in the units of the target row, summed per chunk where they are
not known from the first pass. One uniform number chooses the chunk by its mass and the token inside it by a prefix sum:
no random number per token, and only the rows at the rejected position are read. For block,

    Z_i = sum_x [P_i p_{i+1}(x) - q_{i+1}(x)]+,    i passes iff eta_i < Z_i / (Z_i + 1 - P_i),

for the needed positions only, the last first, so that an earlier one can be left out once a later one has passed.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

from kernels.conclude import is_last, row_address, shared_now
from kernels.decide import FROM_RESIDUAL, FROM_TARGET, FROM_TARGET_WITHOUT, NOTHING, UNDECIDED, write_verdict
from kernels.device_streams import ACCEPT, BONUS, RESIDUAL, uniform
from kernels.device_weights import divisor, log_probability, scale, total, weigh
from kernels.judge import draft_row, draft_slot
from kernels.race import finish, high_words, race


@triton.jit
def open_rows(
    target, draft, tokens, rows, state, temperature, request, slot, index, plan,
    METHOD: tl.constexpr, READS_DRAFT: tl.constexpr,
):  # fmt: skip
    """What `next_weights` needs to know of the rows after `index` accepted tokens, read once.

    Returns:
        (target row, its maximum and threshold; draft row, its maximum and threshold, number of its ids that are
        read, k = S_p / (P S_q); removed token; the scale's two parts; S_p). Without a draft row no id is read.
    """
    row = request.to(tl.int64) * (tokens.width + 1) + index
    row_logits = row_address(target, tokens, request, index)
    maximum = tl.load(rows.maximum + row * rows.stride)
    threshold = tl.load(rows.threshold + row * rows.stride)
    normalizer = tl.load(rows.normalizer + row * rows.stride)
    is_without = plan == FROM_TARGET_WITHOUT
    removed = tl.load(tokens.token_ids + request.to(tl.int64) * tokens.stride + index, mask=is_without, other=-1)
    draft_logits = row_logits
    draft_maximum = maximum
    draft_threshold = threshold
    num_ids = 0
    factor = tl.full((), 0.0, tl.float32)
    if READS_DRAFT:
        compares = plan >= FROM_RESIDUAL
        draft_logits, stats = draft_row(draft, slot, tl.where(compares, index, 0))
        draft_maximum = tl.load(draft.maximum + stats, mask=compares, other=0.0)
        draft_threshold = tl.load(draft.threshold + stats, mask=compares, other=0.0)
        ratio = normalizer / tl.load(draft.normalizer + stats)
        if METHOD == "block":
            ratio = ratio / tl.exp(tl.load(state.log_ratios + row))
        num_ids = tl.where(compares, draft.vocab_size, 0)
        factor = tl.where(compares, ratio, 0.0).to(tl.float32)
    high, low = scale(temperature)
    return (
        row_logits, maximum, threshold,
        draft_logits, draft_maximum, draft_threshold, num_ids, factor,
        removed, high, low, normalizer,
    )  # fmt: skip


@triton.jit
def next_weights(target, draft, opened, offsets, READS_DRAFT: tl.constexpr, TRUNCATED: tl.constexpr):
    """float32 weights of the tokens at `offsets` as the next one: [p - k q]+ without the removed token."""
    row_logits, maximum, threshold = opened[0], opened[1], opened[2]
    draft_logits, draft_maximum, draft_threshold, num_ids, factor = (
        opened[3],
        opened[4],
        opened[5],
        opened[6],
        opened[7],
    )
    removed, high, low = opened[8], opened[9], opened[10]
    inside = offsets < target.vocab_size
    logits = tl.load(row_logits + offsets, mask=inside, other=-float("inf")).to(tl.float32)
    weights = weigh(logits, maximum, high, low)
    if TRUNCATED:
        weights = tl.where(logits >= threshold, weights, 0.0)
    if READS_DRAFT:
        ids = offsets
        if draft.to_draft_ids is not None:
            ids = tl.load(draft.to_draft_ids + offsets, mask=inside, other=-1)
        known = (ids >= 0) & (ids < num_ids)
        proposed = tl.load(draft_logits + ids, mask=known, other=-float("inf")).to(tl.float32)
        covered = weigh(proposed, draft_maximum, high, low)
        if TRUNCATED:
            covered = tl.where(proposed >= draft_threshold, covered, 0.0)
        weights = tl.maximum(tl.fma(-covered, factor, weights), 0.0)
    return tl.where(offsets == removed, 0.0, weights)


@triton.jit
def first_pass_masses(rows, row, temperature, CHUNKS_PADDED: tl.constexpr):
    """[CHUNKS_PADDED] float64 mass of each chunk of a target row that nothing is cut from."""
    chunks = tl.arange(0, CHUNKS_PADDED)
    at = row * rows.num_chunks + chunks
    maxima = tl.load(rows.chunk_maximum + at, mask=chunks < rows.num_chunks, other=-float("inf"))
    sums = tl.load(rows.chunk_sum + at, mask=chunks < rows.num_chunks, other=0.0)
    distances = (maxima - tl.load(rows.maximum + row * rows.stride)).to(tl.float64)
    return sums * tl.exp(distances / divisor(temperature))


@triton.jit
def invert(masses, target_mass, PADDED: tl.constexpr):
    """(first entry whose cumulative mass exceeds the target, mass in front of it); entries of mass 0 are never taken.

    Rounding may leave the target at or above the last cumulative mass; then it is the last entry that has mass.
    """
    entries = tl.arange(0, PADDED)
    cumulative = tl.cumsum(masses, axis=0)
    chosen = tl.min(tl.where((cumulative > target_mass) & (masses > 0), entries, PADDED))
    last = tl.max(tl.where(masses > 0, entries, 0))
    chosen = tl.minimum(chosen, last)
    return chosen, tl.sum(tl.where(entries < chosen, masses, 0.0), axis=0)


@triton.jit
def emit(
    target, draft, tokens, temperature, rows, state, output, request, slot, index, plan, masses_row, num_groups,
    opened, chance, METHOD: tl.constexpr, READS_DRAFT: tl.constexpr, TRUNCATED: tl.constexpr, CHUNK: tl.constexpr,
    CHUNKS_PADDED: tl.constexpr,
):  # fmt: skip
    """Draw the token that follows `index` accepted ones with the uniform number `chance`, and write it."""
    row = request.to(tl.int64) * (tokens.width + 1) + index
    normalizer = opened[11]
    token = tl.full((), 0, tl.int64)
    certain = temperature == 0
    if METHOD == "coupled":
        certain = temperature >= 0
    if certain & (normalizer == normalizer):
        token = tl.load(rows.argmax + row).to(tl.int64)
    elif normalizer == normalizer:
        chunks = tl.arange(0, CHUNKS_PADDED)
        at = state.masses + masses_row * rows.num_chunks + chunks
        if TRUNCATED or plan >= FROM_RESIDUAL:
            masses = tl.load(at, mask=chunks < rows.num_chunks, other=0.0, cache_modifier=".cg")
        else:
            masses = first_pass_masses(rows, row, temperature, CHUNKS_PADDED)
            if plan == FROM_TARGET_WITHOUT:
                removed = tl.load(tokens.token_ids + request.to(tl.int64) * tokens.stride + index) // CHUNK
                offsets = removed.to(tl.int32) * CHUNK + tl.arange(0, CHUNK)
                left = next_weights(target, draft, opened, offsets, READS_DRAFT, TRUNCATED)
                left_mass = total(left, CHUNK)
                masses = tl.where(chunks == removed, left_mass, masses)
        whole = tl.sum(masses, axis=0)
        if whole == 0:
            # Rounding left the residual without mass; the target's own distribution takes its place.
            opened = open_rows(
                target, draft, tokens, rows, state, temperature, request, slot, index, FROM_TARGET, METHOD, READS_DRAFT
            )
            for chunk in range(rows.num_chunks):
                offsets = chunk * CHUNK + tl.arange(0, CHUNK)
                weights = next_weights(target, draft, opened, offsets, READS_DRAFT, TRUNCATED)
                mass = total(weights, CHUNK)
                masses = tl.where(chunks == chunk, mass, masses)
            whole = tl.sum(masses, axis=0)
        chunk, in_front = invert(masses, chance * whole, CHUNKS_PADDED)
        offsets = chunk * CHUNK + tl.arange(0, CHUNK)
        weights = next_weights(target, draft, opened, offsets, READS_DRAFT, TRUNCATED)
        entry, _ = invert(weights.to(tl.float64), chance * whole - in_front, CHUNK)
        token = (chunk * CHUNK + entry).to(tl.int64)
        if METHOD == "pr35461":
            raced = finish(state.race_scores, state.race_tokens, row * rows.num_chunks, num_groups, CHUNKS_PADDED)
            token = tl.where(raced >= 0, raced.to(tl.int64), token)
    write_token(target, tokens, rows, output, temperature, request, index, row, normalizer, token)


@triton.jit
def write_token(target, tokens, rows, output, temperature, request, index, row, normalizer, token):
    """Write the token; for a draw, its log probability and its id in the target's vocabulary."""
    if output.logprobs is not None:
        logit = tl.load(row_address(target, tokens, request, index) + token).to(tl.float32)
        logprob = log_probability(
            logit,
            tl.load(rows.maximum + row * rows.stride),
            normalizer,
            tl.load(rows.threshold + row * rows.stride),
            temperature,
        )
        logprob = tl.where((temperature == 0) & (normalizer == normalizer), 0.0, logprob)
        logprob = tl.where(normalizer == normalizer, logprob, float("nan"))
        tl.store(output.logprobs + request, logprob.to(tl.float32))
    if output.to_target_ids is not None:
        token = tl.load(output.to_target_ids + token).to(tl.int64)
    tl.store(output.token_ids + request.to(tl.int64) * (tokens.width + 1) + index, token)


@triton.jit
def _weigh_chunks(
    target, draft, rows, state, streams, opened, temperature, request, index, row, masses_row, group,
    METHOD: tl.constexpr, READS_DRAFT: tl.constexpr, TRUNCATED: tl.constexpr,
    PARTS: tl.constexpr, CHUNK: tl.constexpr, GROUP: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """Masses of PARTS chunks, a chunk for each warp."""
    LANES: tl.constexpr = 32
    STEP: tl.constexpr = LANES * GROUP
    chunks = group * PARTS + tl.arange(0, PARTS)
    first = chunks[:, None] * CHUNK + tl.arange(0, STEP)[None, :]
    first_pairs = chunks[:, None] * (CHUNK // 2) + tl.arange(0, STEP // 2)[None, :]
    seed, position = tl.load(streams.seeds + request), tl.load(streams.positions + request) + index
    sums = tl.full((PARTS, LANES), 0.0, tl.float64)
    best = tl.full((), -float("inf"), tl.float64)
    winner = tl.full((), -1, tl.int32)
    for step in tl.range(0, CHUNK, STEP, num_stages=1, loop_unroll_factor=UNROLL):
        offsets = first + step
        weights = next_weights(target, draft, opened, offsets, READS_DRAFT, TRUNCATED)
        sums += tl.sum(tl.reshape(weights, (PARTS, LANES, GROUP)), axis=2).to(tl.float64)
        if METHOD == "pr35461":
            high = high_words(seed, position, first_pairs + step // 2)
            best, winner = race(weights, high, offsets, None, best, winner, seed, position, divisor(temperature), True)
    at = state.masses + masses_row * rows.num_chunks + chunks
    tl.store(at, tl.sum(sums, axis=1), mask=chunks < rows.num_chunks)
    if METHOD == "pr35461":
        tl.store(state.race_scores + row * rows.num_chunks + group, best)
        tl.store(state.race_tokens + row * rows.num_chunks + group, winner)


@triton.jit
def _block_passes(tokens, streams, rows, state, request, index, masses_row, CHUNKS_PADDED: tl.constexpr):
    """Whether block's test after `index` accepted tokens passes, its chunk masses being complete."""
    row = request.to(tl.int64) * (tokens.width + 1) + index
    chunks = tl.arange(0, CHUNKS_PADDED)
    at = state.masses + masses_row * rows.num_chunks + chunks
    masses = tl.load(at, mask=chunks < rows.num_chunks, other=0.0, cache_modifier=".cg")
    ratio = tl.exp(tl.load(state.log_ratios + row))
    mass = tl.sum(masses, axis=0) * ratio / tl.load(rows.normalizer + row * rows.stride)
    rest = mass + (1.0 - ratio)
    position = tl.load(streams.positions + request) + index - 1
    chance = uniform(tl.load(streams.seeds + request), ACCEPT, position, tl.load(streams.rounds + request))
    return chance * tl.where(rest == 0, 1.0, rest) < tl.where(rest == 0, ratio, mass)


@triton.jit
def _settle_block(
    tokens, streams, rows, state, output, request, index, masses_row, needed,
    CHUNKS_PADDED: tl.constexpr, WIDTH_PADDED: tl.constexpr,
):  # fmt: skip
    """Judge one needed position; the last to arrive learns the number of accepted tokens, the others -1."""
    if index > 0:
        if shared_now(state.stops + request) <= index:
            if _block_passes(tokens, streams, rows, state, request, index, masses_row, CHUNKS_PADDED):
                tl.atomic_max(state.stops + request, index, sem="relaxed")
    bits = tl.arange(0, 32)
    num_needed = tl.sum((needed >> bits) & 1, axis=0)
    num_accepted = tl.full((), -1, tl.int32)
    if is_last(state.request_arrivals + request, num_needed):
        num_accepted = tl.load(state.stops + request, cache_modifier=".cg")
        tl.debug_barrier()
        tl.store(state.stops + request, 0)
        write_verdict(tokens, output, request, num_accepted, False, WIDTH_PADDED)
    return num_accepted


@triton.jit
def next_chance(stream, index, count, purpose):
    """The uniform number of the token after `index` accepted ones, from the request's (seed, position, round)."""
    seed, position, round_index = stream
    if purpose == 0:
        purpose = tl.where(index < count, RESIDUAL, BONUS)
    return uniform(seed, purpose, position + index, round_index)


@triton.jit
def _emission_kernel(
    target, draft, tokens, temperatures, streams, rows, state, output, purpose,
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
    count = tl.load(tokens.counts + request).to(tl.int32)
    stream = (
        tl.load(streams.seeds + request), tl.load(streams.positions + request), tl.load(streams.rounds + request),
    )  # fmt: skip
    slot = draft_slot(draft, request)
    if OVERLAPS:
        gdc_wait()
    plan = tl.load(state.plans + request)
    needed = tl.load(state.needed + request)
    index = tl.load(output.num_accepted + request).to(tl.int32)
    is_mine = (order == 0) & (plan != NOTHING)
    masses_row = request.to(tl.int64) * state.num_positions
    if METHOD == "block":
        if plan == UNDECIDED:
            index = state.num_positions - 1 - order
            is_mine = ((needed >> index) & 1) != 0
            masses_row += index
    row = request.to(tl.int64) * (tokens.width + 1) + index
    is_summed = plan >= FROM_RESIDUAL
    if TRUNCATED or METHOD == "pr35461":
        is_summed = temperature > 0
    if METHOD == "coupled":
        is_summed = temperature < 0
    if is_mine & (is_summed | (group == 0)):
        emits = is_summed == 0
        opened = open_rows(
            target, draft, tokens, rows, state, temperature, request, slot, index, plan, METHOD, READS_DRAFT
        )
        chance = next_chance(stream, index, count, purpose)
        if is_summed:
            beaten = False
            if METHOD == "block":
                if plan == UNDECIDED:
                    beaten = shared_now(state.stops + request) > index
            if not beaten:
                _weigh_chunks(
                    target, draft, rows, state, streams, opened, temperature, request, index, row, masses_row,
                    group, METHOD, READS_DRAFT, TRUNCATED, PARTS, CHUNK, GROUP, UNROLL,
                )  # fmt: skip
            if is_last(state.row_arrivals + row, NUM_GROUPS):
                emits = True
                if METHOD == "block":
                    if plan == UNDECIDED:
                        settled = _settle_block(
                            tokens, streams, rows, state, output, request, index, masses_row, needed,
                            CHUNKS_PADDED, WIDTH_PADDED,
                        )  # fmt: skip
                        emits = settled >= 0
                        if emits & (settled != index):
                            index = settled
                            masses_row = request.to(tl.int64) * state.num_positions + index
                            opened = open_rows(
                                target, draft, tokens, rows, state, temperature, request, slot, index, plan,
                                METHOD, READS_DRAFT,
                            )  # fmt: skip
                            chance = next_chance(stream, index, count, purpose)
        if emits:
            emit(
                target, draft, tokens, temperature, rows, state, output, request, slot, index, plan, masses_row,
                NUM_GROUPS, opened, chance, METHOD, READS_DRAFT, TRUNCATED, CHUNK, CHUNKS_PADDED,
            )  # fmt: skip
