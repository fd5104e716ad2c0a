"""Draws the token after the accepted ones, once the masses of all chunks are known, and writes it.

One uniform number chooses the chunk by its mass, then a piece of the chunk, then the token, each by a prefix sum: no
random number per token. It runs at the end of the first pass where that pass knows the masses, else in the second.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..random.device_streams import BONUS, RESIDUAL, uniform
from ..rows.gumbel_argmax import finish
from ..rows.softmax_weights import inverse, log_probability, total
from ..rows.unaligned import row_lead
from .accept_count import FROM_RESIDUAL, FROM_TARGET, FROM_TARGET_WITHOUT
from .residual import open_rows, residual_weights

LANES: tl.constexpr = tl.constexpr(32)
"""Of a warp."""
PIECE_BITS: tl.constexpr = tl.constexpr(128)
"""Size of a piece of a chunk, what one thread loads at a time. Pieces are summed before a token is looked for in one of
them: a prefix sum of a whole chunk would take three times the registers that the rest of the first pass takes, and so
leave a third of its programs in flight."""
STRIP: tl.constexpr = tl.constexpr(256)
"""Tokens that are read at a time where time does not matter."""


@triton.jit
def next_uniform(stream, index, count, purpose):
    """The uniform number of the token after `index` accepted ones, from the request's (seed, position, round)."""
    seed, position, round_index = stream
    if purpose == 0:
        purpose = tl.where(index < count, RESIDUAL, BONUS)
    return uniform(seed, purpose, position + index, round_index)


@triton.jit
def load_uniform(state, row):
    """The uniform number of the next token, as the program that prepares a row left it."""
    return tl.load(state.next_uniforms + row, cache_modifier=".cg")


@triton.jit
def load_chunks(rows, row, CHUNKS_PADDED: tl.constexpr):
    """[CHUNKS_PADDED] maximum and sum of each chunk of a target row, as the first pass left them."""
    chunks = tl.arange(0, CHUNKS_PADDED)
    inside = chunks < rows.num_chunks
    at = row * rows.num_chunks + chunks
    maxima = tl.load(rows.chunk_maximum + at, mask=inside, other=-float("inf"), cache_modifier=".cg")
    return maxima, tl.load(rows.chunk_sum + at, mask=inside, other=0.0, cache_modifier=".cg")


@triton.jit
def chunk_masses(chunks, maximum, temperature):
    """[CHUNKS_PADDED] float64 mass of each chunk of a target row that nothing is cut from, in units of its maximum."""
    maxima, sums = chunks
    return sums * tl.exp((maxima - maximum).to(tl.float64) * inverse(temperature))


@triton.jit
def load_lanes(values, first, num_values, other):
    """[LANES] of the values of a row, from `first` on."""
    places = first + tl.arange(0, LANES)
    return tl.load(values + places, mask=places < num_values, other=other, cache_modifier=".cg")


@triton.jit
def _earlier(entry, value, other_entry, other_value):
    """The lower of two entries, with its value."""
    return tl.minimum(entry, other_entry), tl.where(entry <= other_entry, value, other_value)


@triton.jit
def invert(masses, target_mass, PADDED: tl.constexpr):
    """(first entry whose cumulative mass exceeds the target, mass before it); entries of mass 0 are never taken.

    Rounding may leave the target at or above the last cumulative mass; then it is the last entry that has mass.
    """
    entries = tl.arange(0, PADDED)
    cumulative = tl.cumsum(masses, axis=0)
    candidates = tl.where((cumulative > target_mass) & (masses > 0), entries, PADDED)
    # One reduction for both: the barrier of a reduction costs more than its arithmetic.
    chosen, in_front = tl.reduce((candidates, cumulative - masses), 0, _earlier)
    if chosen == PADDED:
        chosen = tl.max(tl.where(masses > 0, entries, 0))
        in_front = tl.sum(tl.where(entries < chosen, masses, 0.0), axis=0)
    return chosen, in_front


@triton.jit
def sum_lanes(masses, num_chunks, CHUNKS_PADDED: tl.constexpr):
    """The sum of float64 masses in memory. Every warp adds them up, a mass a lane, so that none waits for another."""
    whole = tl.full((LANES,), 0.0, tl.float64)
    for first in tl.static_range(0, CHUNKS_PADDED, LANES):
        whole += load_lanes(masses, first, num_chunks, 0.0)
    return tl.sum(whole, axis=0)


@triton.jit
def taken(values, is_taken):
    """The float64 value of the one lane that is taken, 0 if none is: two sums of integers, which take an instruction
    each where a sum of float64 takes five rounds of shuffles."""
    bits = tl.where(is_taken, values, 0.0).to(tl.int64, bitcast=True)
    low, high = tl.sum(bits.to(tl.int32), axis=0), tl.sum((bits >> 32).to(tl.int32), axis=0)
    return ((high.to(tl.int64) << 32) | (low.to(tl.int64) & 0xFFFFFFFF)).to(tl.float64, bitcast=True)


@triton.jit
def load_masses(masses, num_chunks, CHUNKS_PADDED: tl.constexpr):
    """The float64 masses of chunks, a tuple of `load_lanes`."""
    loaded = ()
    for first in tl.static_range(0, CHUNKS_PADDED, LANES):
        loaded += (load_lanes(masses, first, num_chunks, 0.0),)  # type: ignore[assignment]
    return loaded


@triton.jit
def invert_lanes(loaded, uniform_number, CHUNKS_PADDED: tl.constexpr):
    """`invert` of masses from `load_masses`, at the uniform number's share of their sum, in the manner of `sum_lanes`.

    Returns:
        (entry, what is left of the share in it, sum of the masses).
    """
    lanes = tl.arange(0, LANES)
    cumulatives, whole = (), tl.full((), 0.0, tl.float64)
    for block in tl.static_range((CHUNKS_PADDED + LANES - 1) // LANES):
        cumulative = whole + tl.cumsum(loaded[block], axis=0)
        cumulatives += (cumulative,)  # type: ignore[assignment]
        whole = taken(cumulative, lanes == LANES - 1)
    share = uniform_number * whole
    candidates = tl.full((LANES,), CHUNKS_PADDED, tl.int32)
    for block in tl.static_range((CHUNKS_PADDED + LANES - 1) // LANES):
        is_beyond = (cumulatives[block] > share) & (loaded[block] > 0)
        candidates = tl.minimum(candidates, tl.where(is_beyond, block * LANES + lanes, CHUNKS_PADDED))
    chosen = tl.min(candidates, axis=0)
    if chosen == CHUNKS_PADDED:
        for block in tl.static_range((CHUNKS_PADDED + LANES - 1) // LANES):
            last = tl.max(tl.where(loaded[block] > 0, block * LANES + lanes, -1), axis=0)
            chosen = tl.where(last >= 0, last, chosen)
        chosen = tl.where(chosen == CHUNKS_PADDED, 0, chosen)
    in_front = tl.full((LANES,), 0.0, tl.float64)
    for block in tl.static_range((CHUNKS_PADDED + LANES - 1) // LANES):
        is_chosen = block * LANES + lanes == chosen
        in_front = tl.where(is_chosen, cumulatives[block] - loaded[block], in_front)
    return chosen, share - taken(in_front, lanes == chosen % LANES), whole


@triton.jit
def find_token(
    target, draft, opened, masses, target_mass, READS_DRAFT: tl.constexpr, TRUNCATED: tl.constexpr,
    CHUNK: tl.constexpr, CHUNKS_PADDED: tl.constexpr, removed=None,
):  # fmt: skip
    """The token whose cumulative weight first exceeds `target_mass`, by chunk, piece and token."""
    chunk, in_front = invert(masses, target_mass, CHUNKS_PADDED)
    return find_in_chunk(target, draft, opened, chunk, target_mass - in_front, READS_DRAFT, TRUNCATED, CHUNK, removed)


@triton.jit
def invert_pieces(weights, pieces, target_mass, PIECES: tl.constexpr, PIECE: tl.constexpr):
    """Place of the token that `invert` finds in the piece that it finds among the masses `pieces`."""
    columns = tl.arange(0, PIECE)[None, :]
    cumulative = tl.cumsum(pieces, axis=0)
    in_front = cumulative - pieces
    within = tl.cumsum(weights.to(tl.float64), axis=1)
    found = tl.min(tl.where((within > (target_mass - in_front)[:, None]) & (weights > 0), columns, PIECE), axis=1)
    last = tl.max(tl.where(weights > 0, columns, 0), axis=1)
    places = tl.arange(0, PIECES) * PIECE + tl.where(found < PIECE, found, last)
    place = tl.min(tl.where((cumulative > target_mass) & (pieces > 0), places, PIECES * PIECE), axis=0)
    if place == PIECES * PIECE:
        place = tl.max(tl.where(pieces > 0, tl.arange(0, PIECES) * PIECE + last, 0), axis=0)
    return place


@triton.jit
def find_in_chunk(
    target, draft, opened, chunk, rest, READS_DRAFT: tl.constexpr, TRUNCATED: tl.constexpr, CHUNK: tl.constexpr,
    removed=None, AT_ONCE: tl.constexpr = False, METHOD: tl.constexpr = None, rule=None,
):  # fmt: skip
    """The token of a chunk whose cumulative weight there first exceeds `rest`.

    Args:
        AT_ONCE: look into every piece while the first is looked for, which is sooner, and takes more registers.
    """
    PIECE: tl.constexpr = PIECE_BITS // target.logits.dtype.element_ty.primitive_bitwidth
    PIECES: tl.constexpr = CHUNK // PIECE
    offsets = chunk * CHUNK + tl.arange(0, CHUNK)
    weights = residual_weights(target, draft, opened, offsets, READS_DRAFT, TRUNCATED, removed, METHOD, rule)
    by_piece = tl.reshape(weights, (PIECES, PIECE))
    pieces = tl.sum(by_piece.to(tl.float64), axis=1)
    if AT_ONCE:
        found = chunk * CHUNK + invert_pieces(by_piece, pieces, rest, PIECES, PIECE)
    else:
        piece, in_front = invert(pieces, rest, PIECES)
        first = chunk * CHUNK + piece * PIECE
        offsets = first + tl.arange(0, PIECE)
        weights = residual_weights(target, draft, opened, offsets, READS_DRAFT, TRUNCATED, removed, METHOD, rule)
        entry, _ = invert(weights.to(tl.float64), rest - in_front, PIECE)
        found = first + entry
    return found - row_lead(opened[0], target.lead)


@triton.jit
def sample_next(
    target, draft, tokens, temperature, rows, state, output, request, slot, index, plan, masses_row, num_groups,
    opened, argmax, chunks, uniform_number, METHOD: tl.constexpr, READS_DRAFT: tl.constexpr, TRUNCATED: tl.constexpr,
    CHUNK: tl.constexpr, CHUNKS_PADDED: tl.constexpr, in_lanes=None, rule=None,
):  # fmt: skip
    """Draw the token that follows `index` accepted ones with the uniform number `uniform_number`, and write it.

    Args:
        masses_row: where the second pass left the masses of the chunks; only used where it summed them.
        num_groups: of chunks, each with its Gumbel argmax; only used where noise decides.
        opened: the rows, from `open_rows`.
        argmax: of the target row, what is certain to be drawn.
        chunks: of the target row, from `load_chunks`; None to load them only where they are needed.
        in_lanes: the masses that the second pass left, from `load_masses`, for the shortest way to the token.
    """
    row = request.to(tl.int64) * (tokens.width + 1) + index
    normalizer = opened[11]
    token = tl.where(normalizer == normalizer, argmax, 0)
    certain = (temperature == 0) | (normalizer != normalizer)
    if METHOD.noise != "coupled" and not certain:
        chunk, rest, whole = tl.full((), 0, tl.int32), tl.full((), 0.0, tl.float64), tl.full((), 0.0, tl.float64)
        if in_lanes is not None:
            if plan >= FROM_RESIDUAL:
                chunk, rest, whole = invert_lanes(in_lanes, uniform_number, CHUNKS_PADDED)
        if whole == 0:
            places = tl.arange(0, CHUNKS_PADDED)
            if TRUNCATED or plan >= FROM_RESIDUAL:
                at = state.masses + masses_row * rows.num_chunks + places
                masses = tl.load(at, mask=places < rows.num_chunks, other=0.0, cache_modifier=".cg")
            else:
                if chunks is None:
                    of_target = load_chunks(rows, row, CHUNKS_PADDED)
                else:
                    of_target = chunks
                masses = chunk_masses(of_target, opened[1], temperature)
                if plan == FROM_TARGET_WITHOUT:
                    shrunk = (opened[8] + row_lead(opened[0], target.lead)) // CHUNK
                    offsets = shrunk * CHUNK + tl.arange(0, CHUNK)
                    reduced = residual_weights(
                        target, draft, opened, offsets, READS_DRAFT, TRUNCATED, None, METHOD, rule
                    )
                    left_mass = total(reduced, CHUNK)
                    masses = tl.where(places == shrunk, left_mass, masses)
            whole = tl.sum(masses, axis=0)
            if plan != FROM_TARGET:
                if whole == 0:
                    # Rounding left the residual without mass; the target's own distribution takes its place. In strips,
                    # because what is rare must not cost registers.
                    stats = opened[1], normalizer, opened[2]
                    opened = open_rows(
                        target, draft, tokens, state, temperature, request, slot, index, FROM_TARGET, stats,
                        METHOD, READS_DRAFT,
                    )  # fmt: skip
                    for strip in range(rows.num_chunks * (CHUNK // STRIP)):
                        offsets = strip * STRIP + tl.arange(0, STRIP)
                        mass = total(residual_weights(target, draft, opened, offsets, READS_DRAFT, TRUNCATED), STRIP)
                        masses += tl.where(places == strip // (CHUNK // STRIP), mass, 0.0)
                    whole = tl.sum(masses, axis=0)
            chunk, in_front = invert(masses, uniform_number * whole, CHUNKS_PADDED)
            rest = uniform_number * whole - in_front
        AT_ONCE: tl.constexpr = in_lanes is not None
        token = find_in_chunk(
            target, draft, opened, chunk, rest, READS_DRAFT, TRUNCATED, CHUNK, None, AT_ONCE, METHOD, rule
        )
        if METHOD.noise == "shared":
            winner_of_groups = finish(state, row * rows.num_chunks, num_groups, temperature, True, CHUNKS_PADDED)
            token = tl.where(winner_of_groups >= 0, winner_of_groups, token)
    write_token(tokens, output, opened, temperature, request, index, token.to(tl.int64))


@triton.jit
def write_token(tokens, output, opened, temperature, request, index, token):
    """Write the token; for a draw, its log probability and its id in the target's vocabulary."""
    row_logits, maximum, threshold, normalizer = opened[0], opened[1], opened[2], opened[11]
    if output.logprobs is not None:
        logit = tl.load(row_logits + token).to(tl.float32)
        logprob = log_probability(logit, maximum, normalizer, threshold, temperature)
        logprob = tl.where((temperature == 0) & (normalizer == normalizer), 0.0, logprob)
        logprob = tl.where(normalizer == normalizer, logprob, float("nan"))
        tl.store(output.logprobs + request, logprob.to(tl.float32))
    if output.to_target_ids is not None:
        token = tl.load(output.to_target_ids + token).to(tl.int64)
    tl.store(output.token_ids + request.to(tl.int64) * (tokens.width + 1) + index, token)
