"""How many draft tokens of a request are accepted, and what its next token is drawn from.

Runs once the draft tokens of all rows of the request that matter have been tested. Where block verification must
compare whole rows first, it leaves the decision to the second pass and names the positions that are needed. The plan
tells what the next token is drawn from, at once or in the second pass:

    FROM_TARGET           the target's distribution: every draft token was accepted, or the next one was impossible
    FROM_TARGET_WITHOUT   the target's distribution with the rejected draft token removed: one-hot proposals
    FROM_RESIDUAL         [p - q]+
    UNDECIDED             block: the second pass decides
"""

from __future__ import annotations

import triton
import triton.language as tl

from .acceptance_test import IMPOSSIBLE, PASSED
from .device_streams import ACCEPT, uniform

NOTHING: tl.constexpr = tl.constexpr(0)
FROM_TARGET: tl.constexpr = tl.constexpr(1)
FROM_TARGET_WITHOUT: tl.constexpr = tl.constexpr(2)
FROM_RESIDUAL: tl.constexpr = tl.constexpr(3)
UNDECIDED: tl.constexpr = tl.constexpr(4)
MANY_COLUMNS: tl.constexpr = tl.constexpr(8)
"""With more, block has no register for a request's count before its next token is drawn; with fewer, none after."""


@triton.jit
def write_verdict(tokens, output, request, num_accepted, invalid, WIDTH_PADDED: tl.constexpr):
    """Everything but the token after the accepted ones; num_accepted is -1 for a padded slot.
    A request whose caller counts more draft tokens than there is room for is flagged, here or by `flag_excess`.
    """
    row = request.to(tl.int64)
    columns = tl.arange(0, WIDTH_PADDED)
    # All of them, so that the load does not wait for the number of accepted ones.
    drafted = columns < tokens.width
    token_ids = tl.load(tokens.token_ids + row * tokens.stride + columns, mask=drafted, other=-1).to(tl.int64)
    token_ids = tl.where(columns < num_accepted, token_ids, -1)
    written = (columns <= tokens.width) & ((columns != num_accepted) | (num_accepted < 0))
    tl.store(output.token_ids + row * (tokens.width + 1) + columns, token_ids, mask=written)
    tl.store(output.num_accepted + request, tl.maximum(num_accepted, 0).to(tl.int64))
    if WIDTH_PADDED <= MANY_COLUMNS:
        tl.store(output.invalid + request, invalid | (tl.load(tokens.counts + request) > tokens.width))
    else:
        tl.store(output.invalid + request, invalid)


@triton.jit
def flag_excess(tokens, output, request, WIDTH_PADDED: tl.constexpr):
    """What `write_verdict` leaves out: flag a request whose many draft tokens are too many, last of all."""
    if WIDTH_PADDED > MANY_COLUMNS:
        tl.store(output.invalid + request, True, mask=tl.load(tokens.counts + request) > tokens.width)


@triton.jit
def block_length(tokens, streams, state, request, num_usable, one_hot):
    """The part of block verification that single tokens decide.

    h_i <= P_i, so a position whose uniform is not below P_i fails without a look at its rows.

    Returns:
        (number accepted, bit mask of the positions whose residual mass is needed): one of them is final. The mask is 0
        when the number is final; otherwise it has bit 0, for the residual after nothing was accepted.
    """
    row = request.to(tl.int64) * (tokens.width + 1)
    seed, round_index = tl.load(streams.seeds + request), tl.load(streams.rounds + request)
    first_position = tl.load(streams.positions + request)
    log_ratio = tl.full((), 0.0, tl.float64)
    num_accepted = tl.full((), 0, tl.int32)
    needed = tl.full((), 0, tl.int32)
    tl.store(state.log_ratios + row, log_ratio)
    for index in range(1, num_usable + 1):
        step = tl.load(state.target_logprobs + row + index - 1, cache_modifier=".cg")
        step -= tl.load(state.draft_logprobs + row + index - 1, cache_modifier=".cg")
        log_ratio = tl.minimum(log_ratio + step, 0.0)
        tl.store(state.log_ratios + row + index, log_ratio)
        ratio = tl.exp(log_ratio)
        uniform_number = uniform(seed, ACCEPT, first_position + index - 1, round_index)
        if index == num_usable:
            if uniform_number < ratio:
                num_accepted = index
                needed = needed * 0
        elif one_hot:
            mass = ratio * (1.0 - tl.exp(tl.load(state.target_logprobs + row + index, cache_modifier=".cg")))
            rest = mass + (1.0 - ratio)
            if uniform_number * tl.where(rest == 0, 1.0, rest) < tl.where(rest == 0, ratio, mass):
                num_accepted = index
        elif uniform_number < ratio:
            needed = needed | ((needed * 0 + 1) << index)
    if (num_accepted < num_usable) & (one_hot == 0):
        needed = needed | 1
    return num_accepted, needed


@triton.jit
def decide(
    tokens, streams, rows, state, output, temperature, request, count,
    METHOD: tl.constexpr, READS_DRAFT: tl.constexpr, WIDTH_PADDED: tl.constexpr, EMITS_FROM_TARGET: tl.constexpr,
):  # fmt: skip
    """Decide the number of accepted tokens.

    Returns:
        (number accepted, plan, bit mask of the positions whose residual mass is needed).
    """
    row = request.to(tl.int64) * (tokens.width + 1)
    columns = tl.arange(0, WIDTH_PADDED)
    judged = tl.load(state.judgements + row + columns, mask=columns < count, other=PASSED, cache_modifier=".cg")
    normalizers = tl.load(
        rows.normalizer + (row + columns) * rows.stride, mask=columns <= count, other=0.0, cache_modifier=".cg"
    )
    # Rows after the first failure may have been skipped and hold an older result, which the minimum never reaches.
    stop = tl.min(tl.where((judged != PASSED) & (columns < count), columns, WIDTH_PADDED))
    stop = tl.minimum(stop, count)
    stopped = tl.load(tokens.token_ids + request.to(tl.int64) * tokens.stride + stop, mask=stop < count, other=0)
    is_impossible = tl.sum(((columns == stop) & (columns < count) & (judged == IMPOSSIBLE)).to(tl.int32)) > 0
    one_hot = (temperature == 0).to(tl.int32)
    if not READS_DRAFT:
        one_hot = one_hot | 1

    num_accepted = stop
    needed = stop * 0
    if METHOD == "block":
        num_accepted, needed = block_length(tokens, streams, state, request, stop, one_hot)
        ends = num_accepted == stop
    else:
        ends = (stop == count) | is_impossible
    undefined = tl.sum(((columns == num_accepted) & (normalizers != normalizers)).to(tl.int32)) > 0
    # A placeholder, -1, stops the round and is no error.
    invalid = ends & ((is_impossible & (stopped != -1)) | undefined)
    if METHOD == "greedy":
        invalid = invalid | (temperature > 0)
    write_verdict(tokens, output, request, num_accepted, invalid, WIDTH_PADDED)
    if EMITS_FROM_TARGET:
        plan = FROM_TARGET
    else:
        rejected_plan = tl.where(one_hot != 0, FROM_TARGET_WITHOUT, FROM_RESIDUAL)
        plan = tl.where(needed != 0, UNDECIDED, tl.where(ends, FROM_TARGET, rejected_plan))
    return num_accepted, plan, needed
