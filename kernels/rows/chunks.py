"""What a program of the first pass reads: the maximum and the sum of weights of each of its chunks of one row.

Where coupled noise decides, also which of their tokens it draws (kernels.rows.gumbel_argmax).
"""

from __future__ import annotations

import triton
import triton.language as tl

from .gumbel_argmax import (
    gumbel_argmax_of_logits,
    keep_leader,
    may_hide_a_winner,
    no_leader,
    no_race,
    race,
)
from .softmax_weights import scale, weigh
from .token_mask import only_allowed
from .unaligned import load_logits, load_row, row_lead

NO_PLACE: tl.constexpr = tl.constexpr(2**30)
"""Beyond any token."""


@triton.jit
def load_early(
    row_logits, first_chunk, num_tokens, PARTS: tl.constexpr, CHUNK: tl.constexpr, GROUP: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """The logits that `sum_chunks` sums in its first EARLY steps, a tuple, in their own type: of aligned rows.

    Their address takes nothing from memory. So they may be loaded ahead of the scalars that say whether they matter.
    """
    STEP: tl.constexpr = 32 * GROUP
    first = (first_chunk + tl.arange(0, PARTS))[:, None] * CHUNK + tl.arange(0, STEP)[None, :]
    loaded = ()
    for step in tl.static_range(EARLY):
        offsets = first + step * STEP
        values = tl.load(row_logits + offsets, mask=offsets < num_tokens, other=-float("inf"))
        loaded += (values,)  # type: ignore[assignment]
    return loaded


@triton.jit
def _add_step(
    values, offsets, sofar, high, low, SUMS_ENTROPY: tl.constexpr, GREEDY: tl.constexpr, PARTS: tl.constexpr,
    LANES: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """(maximum, sums, moments, places) of every thread after one more step, and the largest logits of the step."""
    maximum, sums, moments, places = sofar
    logits = tl.reshape(values, (PARTS, LANES, GROUP))
    largest = tl.max(logits, axis=2)
    higher = tl.maximum(maximum, largest)
    # While all is -inf any finite reference does; -inf minus -inf would be NaN.
    reference = tl.where(higher == -float("inf"), 0.0, higher)
    weights = weigh(logits, reference[:, :, None], high, low)
    shrink = weigh(maximum, reference, high, low).to(tl.float64)
    if SUMS_ENTROPY:
        distances = logits - reference[:, :, None]
        moved = tl.where(sums > 0, sums * (maximum - reference).to(tl.float64), 0.0)
        added = tl.sum(tl.where(weights > 0, weights * distances, 0.0), axis=2).to(tl.float64)
        moments = shrink * (moments + moved) + added
    sums = sums * shrink + tl.sum(weights, axis=2).to(tl.float64)
    if GREEDY:
        of_group = tl.reshape(offsets, (PARTS, LANES, GROUP))
        found = tl.min(tl.where(logits == largest[:, :, None], of_group, NO_PLACE), axis=2)
        places = tl.where(largest > maximum, found, places)
    return (higher, sums, moments, places), largest


@triton.jit
def sum_chunks(
    target, output, row_logits, mask, temperature, first_chunk, seed, position, kept,
    SUMS_ENTROPY: tl.constexpr, RACES: tl.constexpr, GREEDY: tl.constexpr, PARTS: tl.constexpr, CHUNK: tl.constexpr,
    GROUP: tl.constexpr, UNROLL: tl.constexpr, early=None, EARLY: tl.constexpr = 0,
):  # fmt: skip
    """Statistics of PARTS chunks of one row, a chunk for each warp.

    Every thread keeps a maximum and a sum of its own, in units of that maximum, until the chunk has been read: threads
    meet once a chunk and not once a step.

    Args:
        SUMS_ENTROPY: sum the moments that the entropy follows from.
        RACES: coupled noise decides.
        early: of the first EARLY steps, from `load_early`; not where coupled noise decides.

    Returns:
        ([PARTS] float32 maximum, float64 sum, float64 moment, int32 first token with the maximum of each chunk; what
        `race` keeps of coupled noise). See kernels.launch.kernel_args.RowBuffers for those that mean something.
    """
    tl.static_assert(EARLY == 0 or not RACES, "coupled noise races in every step")
    LANES: tl.constexpr = 32
    STEP: tl.constexpr = LANES * GROUP
    high, low = scale(temperature)
    chunks = first_chunk + tl.arange(0, PARTS)
    first = chunks[:, None] * CHUNK + tl.arange(0, STEP)[None, :]
    sofar = (
        tl.full((PARTS, LANES), -float("inf"), tl.float32),
        tl.full((PARTS, LANES), 0.0, tl.float64),
        tl.full((PARTS, LANES), 0.0, tl.float64),
        tl.full((PARTS, LANES), 0, tl.int32),
    )
    for step in tl.static_range(EARLY):
        offsets = first + step * STEP
        values = only_allowed(early[step].to(tl.float32), offsets, target.vocab_size, mask, GROUP)
        sofar, _ = _add_step(values, offsets, sofar, high, low, SUMS_ENTROPY, GREEDY, PARTS, LANES, GROUP)
    for step in tl.range(EARLY * STEP, CHUNK, STEP, num_stages=1, loop_unroll_factor=UNROLL):
        offsets = first + step
        values = load_row(row_logits, offsets, target.vocab_size, target.in_words, target.lead)
        values = only_allowed(values, offsets, target.vocab_size, mask, GROUP)
        sofar, largest = _add_step(values, offsets, sofar, high, low, SUMS_ENTROPY, GREEDY, PARTS, LANES, GROUP)
        if RACES and not GREEDY:
            groups = chunks[:, None] * (CHUNK // GROUP) + step // GROUP + tl.arange(0, LANES)[None, :]
            kept = race(
                kept, values, largest, offsets, groups, target.vocab_size, output.to_target_ids, seed, position, high,
                PARTS, LANES, GROUP,
            )  # fmt: skip
    maximum, sums, moments, places = sofar
    highest = tl.max(maximum, axis=1)
    reference = tl.where(highest == -float("inf"), 0.0, highest)[:, None]
    shrink = weigh(maximum, reference, high, low).to(tl.float64)
    moment = tl.full((PARTS,), 0.0, tl.float64)
    if SUMS_ENTROPY:
        moved = tl.where(sums > 0, sums * (maximum - reference).to(tl.float64), 0.0)
        moment = tl.sum(shrink * (moments + moved), axis=1)
    first_place = tl.full((PARTS,), 0, tl.int32)
    if GREEDY:
        first_place = tl.min(tl.where(maximum == highest[:, None], places, NO_PLACE), axis=1)
        first_place -= row_lead(row_logits, target.lead)
    return highest, tl.sum(sums * shrink, axis=1), moment, first_place, kept


@triton.jit
def _leader_of_group(
    target, rows, output, row_logits, mask, temperature, first_chunk, num_chunks, seed, position, kept,
    PARTS: tl.constexpr, CHUNK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """The Gumbel argmax of coupled noise among the chunks of one program, of which `race` has kept a group a thread."""
    LANES: tl.constexpr = 32
    STEP: tl.constexpr = LANES * GROUP
    leader = no_leader()
    # Behind the end of the row where a thread has kept nothing.
    groups = tl.where(kept[1] < 0, rows.num_chunks * (CHUNK // GROUP), kept[1])
    offsets = tl.reshape(groups[:, :, None] * GROUP + tl.arange(0, GROUP)[None, None, :], (PARTS, STEP))
    values = load_logits(row_logits, offsets, target.vocab_size, target.in_words, None)
    values = only_allowed(values, offsets, target.vocab_size, mask, GROUP)
    leader = gumbel_argmax_of_logits(
        values, -float("inf"), offsets, target.vocab_size, output.to_target_ids, leader, seed, position, temperature
    )
    if may_hide_a_winner(kept, leader):
        for first in tl.range(first_chunk * CHUNK, (first_chunk + num_chunks) * CHUNK, PARTS * STEP):
            offsets = first + tl.reshape(tl.arange(0, PARTS * STEP), (PARTS, STEP))
            values = load_logits(row_logits, offsets, target.vocab_size, target.in_words, None)
            values = only_allowed(values, offsets, target.vocab_size, mask, GROUP)
            leader = gumbel_argmax_of_logits(
                values, -float("inf"), offsets, target.vocab_size, output.to_target_ids, leader, seed, position,
                temperature,
            )  # fmt: skip
    return leader


@triton.jit
def read_group(
    target, rows, state, streams, output, row_logits, mask, request, index, row, temperature, group,
    SUMS_ENTROPY: tl.constexpr, RACES: tl.constexpr, GREEDY: tl.constexpr, SETS: tl.constexpr, PARTS: tl.constexpr,
    CHUNK: tl.constexpr, GROUP: tl.constexpr, UNROLL: tl.constexpr, early=None, EARLY: tl.constexpr = 0,
):  # fmt: skip
    """Read the chunks of one program, SETS times PARTS of them; with one set `early` may have the first steps."""
    tl.static_assert(EARLY == 0 or SETS == 1, "early steps are of the first set")
    seed, position = tl.load(streams.seeds + request), tl.load(streams.positions + request) + index
    kept = no_race(PARTS, 32)
    for part in range(SETS):
        first_chunk = (group * SETS + part) * PARTS
        highest, total, moment, first_place, kept = sum_chunks(
            target, output, row_logits, mask, temperature, first_chunk, seed, position, kept,
            SUMS_ENTROPY, RACES, GREEDY, PARTS, CHUNK, GROUP, UNROLL, early, EARLY,
        )  # fmt: skip
        chunks = first_chunk + tl.arange(0, PARTS)
        at = row * rows.num_chunks + chunks
        inside = chunks < rows.num_chunks
        tl.store(rows.chunk_maximum + at, highest, mask=inside)
        tl.store(rows.chunk_sum + at, total, mask=inside)
        if SUMS_ENTROPY:
            tl.store(rows.chunk_moment + at, moment, mask=inside)
        if GREEDY:
            tl.store(rows.chunk_argmax + at, first_place, mask=inside)
    if RACES and not GREEDY:
        leader = _leader_of_group(
            target, rows, output, row_logits, mask, temperature, group * SETS * PARTS, SETS * PARTS, seed, position,
            kept, PARTS, CHUNK, GROUP,
        )  # fmt: skip
        keep_leader(state, row * rows.num_chunks + group, leader, False)
