"""All rows of a request at once, in vectors with an entry for each draft token: for a program that decides by itself.

What does not depend on the sums of the target rows is worked out ahead of them (`prepare_all`, and `compare_drafts`
where the statistics of the draft rows are known), and kept there by `anchored`. `combine_rows` takes the sums.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..random.device_streams import ACCEPT, BONUS, RESIDUAL, uniform
from ..rows.addresses import row_address
from ..rows.softmax_weights import reciprocal
from ..rows.token_mask import allowed_logit, target_mask_row
from .accept_count import entry
from .acceptance import draft_logit, draft_logprob
from .sample_next import LANES, load_lanes


@triton.jit
def anchored(values):
    """The float64 or float32 values, worked out where this is called: LLVM moves what it may to the branch that uses
    it, behind the wait for the sums. ptxas is not bound by it, and left everything in place (Triton 3.6)."""
    if values.dtype == tl.float64:
        return tl.inline_asm_elementwise("mov.b64 $0, $1;", "=d,d", [values], tl.float64, is_pure=False, pack=1)
    else:
        return tl.inline_asm_elementwise("mov.b32 $0, $1;", "=f,f", [values], tl.float32, is_pure=False, pack=1)


@triton.jit
def prepare_all(target, draft, tokens, request, columns, count, stream, temperature, slot, token_ids, purpose):
    """kernels.chain.acceptance.prepare for every draft token, without log q(X).

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
def compare_drafts(
    rule, columns, draft_logits, of_draft, uniform_numbers, compared, temperature, inverted, METHOD: tl.constexpr
):  # fmt: skip
    """What the tests need of the draft rows, vectors.

    Args:
        of_draft: maximum, threshold and normalizer of every draft row.
        compared: whether a draft token is compared with its row.
        inverted: 1 / T.

    Returns:
        (log q(X), 0 where nothing is compared; but for rules that count it only tells by -inf that X cannot have been
        drawn; the rule's limit, or the uniform number of rules that count; 1 / S_q), all float64.
    """
    maximum, threshold, normalizer = of_draft
    inverse_of_draft = reciprocal(normalizer)
    if METHOD.count is not None:
        logprobs = draft_logprob(draft_logits, maximum, normalizer, threshold, temperature)
        proposed = tl.where(compared, logprobs, 0.0)
        limits = uniform_numbers
    else:
        probs = tl.exp((draft_logits.to(tl.float64) - maximum.to(tl.float64)) * inverted) * inverse_of_draft
        is_possible = (draft_logits > -float("inf")) & (draft_logits >= threshold) & (probs == probs)
        proposed = tl.where(compared & (is_possible == 0), -float("inf"), 0.0).to(tl.float64)
        limits = METHOD.limit(rule, columns, tl.where(compared, probs, 1.0), uniform_numbers)
    return proposed, limits, inverse_of_draft


@triton.jit
def _add_each(first, second, third, fourth, other_first, other_second, other_third, other_fourth):
    """The sums of four numbers each."""
    return first + other_first, second + other_second, third + other_third, fourth + other_fourth


@triton.jit
def combine_rows(
    rows, first_cell, columns, num_wanted, temperature, inverted, logits, CHUNKS_PADDED: tl.constexpr,
    WIDTH_PADDED: tl.constexpr,
):  # fmt: skip
    """(maximum, normalizer, argmax, weight exp((logit - M) / T) of a token) of the first rows, vectors;
    kernels.chain.row_reduce combines a row at a time.

    Args:
        inverted: 1 / T.
        logits: of the tokens; None for weights of 0.

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
    masses = sums * tl.exp((maxima - highest).to(tl.float64) * inverted)
    weights = tl.zeros_like(normalizer)
    if logits is not None:
        # in front of the sums, which it does not wait for
        weights = tl.exp((logits.to(tl.float64) - maximum.to(tl.float64)) * inverted)
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
    return maximum, normalizer, argmax, weights
