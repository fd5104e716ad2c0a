"""First pass of a batch that truncates: one program reads a whole row, finds its threshold, and tests its draft token.

The row is in the L2 cache after its first reading, so that the search (kernels.rows.thresholds) may go over it again.
As in kernels.chain.row_reduce, rows are taken by position, and those after a rejection are not read.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents

from ..random.device_streams import load_stream
from ..rows.addresses import row_address
from ..rows.candidates import MARKS, list_marks
from ..rows.gumbel_argmax import gumbel_argmax_of_logits, no_leader
from ..rows.softmax_weights import divisor, scale, weigh
from ..rows.threshold_estimate import guess_bound
from ..rows.thresholds import row_sums, search
from ..rows.token_mask import only_allowed, target_mask_row
from ..rows.unaligned import load_logits
from .acceptance import load_proposal, prepare
from .row_epilogue import arrive, conclude_row, is_padding, served_count, skip_slot, stop_index


@triton.jit
def read_row(
    row_logits, vocab_size, in_words, mask, temperature, bound, scratch,
    LANES: tl.constexpr, GROUP: tl.constexpr, DEPTH: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """(maximum, mass in units of the maximum, most tokens that can have mass, [WARPS] groups listed) of a row; mass NaN
    for an invalid row.

    Every thread keeps a maximum and a mass of its own until the row has been read. Groups of tokens that reach the
    bound are marked meanwhile, and listed (kernels.rows.candidates).
    """
    WARPS: tl.constexpr = LANES // GROUP // 32
    high, low = scale(temperature)
    maxima = tl.full((WARPS, 32), -float("inf"), tl.float32)
    sums = tl.full((WARPS, 32), 0.0, tl.float64)
    num_groups = tl.full((WARPS,), 0, tl.int32)
    most = vocab_size
    if mask[0] is not None:
        counts = tl.full((WARPS, 32), 0, tl.int32)
    for start in tl.range(0, vocab_size, LANES * MARKS):
        marks = tl.full((WARPS, 32), 0, tl.int32)
        found = tl.full((WARPS, 32), 0, tl.int32)
        stop = tl.minimum(vocab_size, start + LANES * MARKS)
        for first in tl.range(start, stop, LANES, loop_unroll_factor=UNROLL):
            offsets = first + tl.arange(0, LANES)
            values = load_logits(row_logits, offsets, vocab_size, in_words)
            values = only_allowed(values, offsets, vocab_size, mask, GROUP)
            logits = tl.reshape(values, (WARPS, 32, GROUP))
            if mask[0] is not None:
                counts += tl.sum((logits > -float("inf")).to(tl.int32), axis=2)
            highest = tl.max(logits, axis=2)
            reaches = (highest >= bound).to(tl.int32)
            found += reaches
            marks |= reaches << ((first - start) // LANES)
            higher = tl.maximum(maxima, highest)
            # While all is -inf any finite reference does; -inf minus -inf would be NaN.
            reference = tl.where(higher == -float("inf"), 0.0, higher)
            weights = weigh(logits, reference[:, :, None], high, low)
            shrink = weigh(maxima, reference, high, low).to(tl.float64)
            sums = sums * shrink + tl.sum(weights, axis=2).to(tl.float64)
            maxima = higher
        num_groups = list_marks(marks, found, start // LANES, num_groups, scratch, DEPTH)
    maximum = tl.max(tl.max(maxima, axis=1), axis=0)
    reference = tl.where(maximum == -float("inf"), 0.0, maximum)
    mass = tl.sum(tl.sum(sums * weigh(maxima, reference, high, low).to(tl.float64), axis=1), axis=0)
    if mask[0] is not None:
        most = tl.sum(tl.sum(counts, axis=1), axis=0)
    return maximum, tl.where(maximum == -float("inf"), float("nan"), mass), most, num_groups


@triton.jit
def first_argmax(row_logits, vocab_size, in_words, mask, maximum, LANES: tl.constexpr, GROUP: tl.constexpr):
    """Lowest id among the largest logits."""
    found = vocab_size
    for first in tl.range(0, vocab_size, LANES):
        offsets = first + tl.arange(0, LANES)
        logits = load_logits(row_logits, offsets, vocab_size, in_words)
        logits = only_allowed(logits, offsets, vocab_size, mask, GROUP)
        found = tl.minimum(found, tl.min(tl.where(logits == maximum, offsets, vocab_size), axis=0))
    return found


@triton.jit
def gumbel_argmax_of_row(
    row_logits, vocab_size, in_words, mask, threshold, temperature, to_target_ids, seed, position,
    LANES: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """The token that coupled noise draws among those at or above the threshold."""
    leader = no_leader()
    for first in tl.range(0, vocab_size, LANES):
        offsets = first + tl.arange(0, LANES)
        logits = load_logits(row_logits, offsets, vocab_size, in_words)
        logits = only_allowed(logits, offsets, vocab_size, mask, GROUP)
        leader = gumbel_argmax_of_logits(
            logits, threshold, offsets, vocab_size, to_target_ids, leader, seed, position, temperature
        )
    return leader[3]


@triton.jit
def _truncated_rows_kernel(
    target, draft, tokens, sampling, cutting, streams, rule, rows, state, output, scratch,
    METHOD: tl.constexpr,
    SKIPS: tl.constexpr,
    READS_DRAFT: tl.constexpr,
    SHIFT: tl.constexpr,
    LANES: tl.constexpr,
    GROUP: tl.constexpr,
    DEPTH: tl.constexpr,
    UNROLL: tl.constexpr,
    CHUNK: tl.constexpr,
    CHUNKS_PADDED: tl.constexpr,
    WIDTH_PADDED: tl.constexpr,
    EMITS: tl.constexpr,
    EMITS_FROM_TARGET: tl.constexpr,
    OVERLAPS: tl.constexpr,
):  # fmt: skip
    if OVERLAPS:
        gdc_launch_dependents()
    temperatures, top_ks, top_ps, min_ps = sampling[0], sampling[1], sampling[2], sampling[3]
    scratch += tl.program_id(0).to(tl.int64) * (LANES // GROUP * DEPTH)
    request = tl.program_id(0) % tokens.num_requests
    index = tl.program_id(0) // tokens.num_requests
    temperature = tl.load(temperatures + request)
    count = served_count(tokens, request, temperature, cutting, True)
    stop = tokens.width + 1
    if SKIPS:
        stop = stop_index(tokens, state, request)
    if index <= count:
        row_logits = row_address(target, tokens, request, index)
        if index <= stop:
            mask = (
                target.mask_words,
                target.mask_stride,
                target.num_mask_words,
                target.mask_token_ids,
                target_mask_row(target, tokens, request, index, True),
            )
            top_k = tl.load(top_ks + request)
            top_p = tl.load(top_ps + request)
            min_p = tl.load(min_ps + request)
            cuts = (temperature > 0) & ((top_k > 0) | (top_p < 1) | (min_p > 0))
            bound = tl.full((), float("inf"), tl.float32)
            if cuts:
                bound = guess_bound(
                    row_logits, target.vocab_size, target.in_words, mask, temperature, top_k, top_p, min_p,
                    SHIFT, LANES, GROUP, DEPTH, UNROLL,
                )  # fmt: skip
            maximum, normalizer, most, num_groups = read_row(
                row_logits, target.vocab_size, target.in_words, mask, temperature, bound, scratch,
                LANES, GROUP, DEPTH, UNROLL,
            )  # fmt: skip
            threshold = tl.full((), -float("inf"), tl.float32)
            argmax = tl.full((), -1, tl.int32)
            # At temperature 0 that of temperature 1.
            mass = normalizer
            if normalizer == normalizer:
                if temperature == 0:
                    argmax = first_argmax(row_logits, target.vocab_size, target.in_words, mask, maximum, LANES, GROUP)
                    normalizer = normalizer / normalizer
                elif cuts:
                    threshold, normalizer = search(
                        row_logits, target.vocab_size, target.in_words, mask, bound, num_groups, maximum, normalizer,
                        most, temperature, (top_ks + request, top_ps + request, min_ps + request), scratch,
                        SHIFT, LANES, GROUP, DEPTH,
                    )  # fmt: skip
            # Loaded again, it takes no register while the row is searched.
            temperature = tl.load(temperatures + request, cache_modifier=".cg")
            statistic = tl.full((), 0.0, tl.float64)
            if METHOD.statistic == "entropy":
                if temperature > 0:
                    _, moment, _ = row_sums(
                        row_logits,
                        target.vocab_size,
                        target.in_words,
                        mask,
                        maximum,
                        threshold,
                        temperature,
                        LANES,
                        GROUP,
                    )
                    statistic = tl.log(normalizer) - moment / divisor(temperature) / normalizer
            if METHOD.statistic == "own":
                if index < count:
                    mass = tl.where(temperature == 0, mass, normalizer)
                    statistic = METHOD.of_row(
                        target, row_logits, mask, rule, threshold, maximum, mass, temperature, LANES, GROUP
                    )
            if METHOD.noise == "coupled":
                if (temperature > 0) & (normalizer == normalizer):
                    argmax = gumbel_argmax_of_row(
                        row_logits, target.vocab_size, target.in_words, mask, threshold, temperature,
                        output.to_target_ids, tl.load(streams.seeds + request),
                        tl.load(streams.positions + request) + index, LANES, GROUP,
                    )  # fmt: skip
            prepared = (
                tl.full((), -1, tl.int64),
                maximum,
                tl.full((), 0.0, tl.float64),
                tl.full((), 0.0, tl.float64),
            )
            if index < count:
                proposal = load_proposal(draft, tokens, request, index, True)
                stream = load_stream(streams, request, True)
                prepared = prepare(target, draft, proposal, stream, temperature, index, row_logits, mask, METHOD, False)
            conclude_row(
                target, tokens, rule, rows, state, temperature, request, index, count, prepared,
                (maximum, normalizer, threshold, argmax, statistic), METHOD, SKIPS,
            )  # fmt: skip
        arrive(
            target, draft, tokens, streams, rule, rows, state, output, temperature, request, count,
            METHOD, READS_DRAFT, EMITS, CHUNK, CHUNKS_PADDED, WIDTH_PADDED, EMITS_FROM_TARGET,
        )  # fmt: skip
    elif is_padding(count, cutting) & (index == 0):
        skip_slot(target, tokens, state, output, request, count, WIDTH_PADDED)
