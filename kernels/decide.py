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
from .device_streams import ACCEPT, load_stream, uniform
from .fly import with_deferred

NOTHING: tl.constexpr = tl.constexpr(0)
FROM_TARGET: tl.constexpr = tl.constexpr(1)
FROM_TARGET_WITHOUT: tl.constexpr = tl.constexpr(2)
FROM_RESIDUAL: tl.constexpr = tl.constexpr(3)
UNDECIDED: tl.constexpr = tl.constexpr(4)
MANY_COLUMNS: tl.constexpr = tl.constexpr(8)
"""With more, block has no register for a request's count before its next token is drawn; with fewer, none after."""


@triton.jit
def entry(values, columns, index):
    """The entry of a vector at an index; the other entries may hold anything, NaN too."""
    return tl.sum(tl.where(columns == index, values, tl.zeros_like(values)), axis=0)


@triton.jit
def load_token_ids(tokens, request, columns):
    """All draft tokens of a request, so that the load waits for no count; -1 beyond them."""
    at = tokens.token_ids + request.to(tl.int64) * tokens.stride + columns
    return tl.load(at, mask=columns < tokens.width, other=-1).to(tl.int64)


@triton.jit
def store_verdict(tokens, output, request, columns, token_ids, num_accepted, invalid):
    """Everything but the token after the accepted ones; num_accepted is -1 for a padded slot."""
    token_ids = tl.where(columns < num_accepted, token_ids, -1)
    written = (columns <= tokens.width) & ((columns != num_accepted) | (num_accepted < 0))
    tl.store(output.token_ids + request.to(tl.int64) * (tokens.width + 1) + columns, token_ids, mask=written)
    tl.store(output.num_accepted + request, tl.maximum(num_accepted, 0).to(tl.int64))
    tl.store(output.invalid + request, invalid)


@triton.jit
def write_verdict(tokens, output, request, num_accepted, invalid, WIDTH_PADDED: tl.constexpr):
    """Load the draft tokens and `store_verdict`. A request whose count exceeds the width is flagged, here or by
    `flag_excess`."""
    columns = tl.arange(0, WIDTH_PADDED)
    if WIDTH_PADDED <= MANY_COLUMNS:
        invalid = invalid | (tl.load(tokens.counts + request) > tokens.width)
    store_verdict(tokens, output, request, columns, load_token_ids(tokens, request, columns), num_accepted, invalid)


@triton.jit
def flag_excess(tokens, output, request, WIDTH_PADDED: tl.constexpr):
    """What `write_verdict` leaves out: flag a request whose many draft tokens are too many, last of all."""
    if WIDTH_PADDED > MANY_COLUMNS:
        tl.store(output.invalid + request, True, mask=tl.load(tokens.counts + request) > tokens.width)


@triton.jit
def position_passes(uniform_number, mass, ratio):
    """Block's test of a position: eta < Z / (Z + 1 - P), with Z the mass of its residual and P its ratio."""
    rest = mass + (1.0 - ratio)
    return uniform_number * tl.where(rest == 0, 1.0, rest) < tl.where(rest == 0, ratio, mass)


@triton.jit
def block_length(columns, target_logprobs, draft_logprobs, uniform_numbers, num_usable, one_hot):
    """The part of block verification that single tokens decide.

    h_i <= P_i, so a position whose uniform is not below P_i fails without a look at its rows.

    Args:
        target_logprobs, draft_logprobs, uniform_numbers: float64, of each draft token; vectors like `columns`.

    Returns:
        (number accepted, bit mask of the positions whose residual mass is needed, vector of log P_i): one of them is
        final. The mask is 0 when the number is final; otherwise it has bit 0, for the residual after nothing was
        accepted.
    """
    log_ratios = tl.zeros_like(target_logprobs)
    log_ratio = tl.full((), 0.0, tl.float64)
    num_accepted = tl.full((), 0, tl.int32)
    needed = tl.full((), 0, tl.int32)
    for index in range(1, num_usable + 1):
        step = entry(target_logprobs, columns, index - 1) - entry(draft_logprobs, columns, index - 1)
        log_ratio = tl.minimum(log_ratio + step, 0.0)
        log_ratios = tl.where(columns == index, log_ratio, log_ratios)
        ratio = tl.exp(log_ratio)
        uniform_number = entry(uniform_numbers, columns, index - 1)
        if index == num_usable:
            if uniform_number < ratio:
                num_accepted = index
                needed = needed * 0
        elif one_hot:
            mass = ratio * (1.0 - tl.exp(entry(target_logprobs, columns, index)))
            if position_passes(uniform_number, mass, ratio):
                num_accepted = index
        elif uniform_number < ratio:
            needed = needed | ((needed * 0 + 1) << index)
    if (num_accepted < num_usable) & (one_hot == 0):
        needed = needed | 1
    return num_accepted, needed, log_ratios


@triton.jit
def decide_loaded(
    columns, token_ids, judged, normalizers, target_logprobs, draft_logprobs, uniform_numbers, temperature, count,
    METHOD: tl.constexpr, READS_DRAFT: tl.constexpr, WIDTH_PADDED: tl.constexpr, EMITS_FROM_TARGET: tl.constexpr,
):  # fmt: skip
    """Decide the number of accepted tokens from vectors with an entry for each draft token; `normalizers` also has one
    for the row after the last.

    Args:
        target_logprobs, draft_logprobs, uniform_numbers: only used by block.

    Returns:
        (number accepted, plan, bit mask of the positions whose residual mass is needed, whether the request is flagged,
        vector of log P_i of block).
    """
    # Rows after the first failure may have been skipped and hold an older result, which the minimum never reaches.
    stop = tl.min(tl.where((judged != PASSED) & (columns < count), columns, WIDTH_PADDED))
    stop = tl.minimum(stop, count)
    is_stop = (columns == stop) & (columns < count)
    is_impossible = tl.sum((is_stop & (judged == IMPOSSIBLE)).to(tl.int32)) > 0
    # A placeholder, -1, stops the round and is no error.
    is_placeholder = tl.sum((is_stop & (token_ids == -1)).to(tl.int32)) > 0
    one_hot = (temperature == 0).to(tl.int32)
    if not READS_DRAFT:
        one_hot = one_hot | 1

    num_accepted = stop
    needed = stop * 0
    log_ratios = tl.zeros_like(normalizers)
    if METHOD == "block":
        num_accepted, needed, log_ratios = block_length(
            columns, target_logprobs, draft_logprobs, uniform_numbers, stop, one_hot
        )
        ends = num_accepted == stop
    else:
        ends = (stop == count) | is_impossible
    undefined = tl.sum(((columns == num_accepted) & (normalizers != normalizers)).to(tl.int32)) > 0
    invalid = ends & ((is_impossible & (is_placeholder == 0)) | undefined)
    if METHOD == "greedy":
        invalid = invalid | (temperature > 0)
    if EMITS_FROM_TARGET:
        plan = FROM_TARGET
    else:
        rejected_plan = tl.where(one_hot != 0, FROM_TARGET_WITHOUT, FROM_RESIDUAL)
        plan = tl.where(needed != 0, UNDECIDED, tl.where(ends, FROM_TARGET, rejected_plan))
    return num_accepted, plan, needed, invalid, log_ratios


@triton.jit
def decide(
    tokens, streams, rule, rows, state, output, temperature, request, count,
    METHOD: tl.constexpr, READS_DRAFT: tl.constexpr, WIDTH_PADDED: tl.constexpr, EMITS_FROM_TARGET: tl.constexpr,
):  # fmt: skip
    """Decide the number of accepted tokens from what the programs of the rows left, and write the verdict.

    Returns:
        (number accepted, plan, bit mask of the positions whose residual mass is needed).
    """
    row = request.to(tl.int64) * (tokens.width + 1)
    columns = tl.arange(0, WIDTH_PADDED)
    judged = tl.load(state.judgements + row + columns, mask=columns < count, other=PASSED, cache_modifier=".cg")
    if METHOD == "fly":
        judged = with_deferred(rule, judged, columns, count, WIDTH_PADDED)
    normalizers = tl.load(
        rows.normalizer + (row + columns) * rows.stride, mask=columns <= count, other=0.0, cache_modifier=".cg"
    )
    target_logprobs, draft_logprobs, uniform_numbers = normalizers, normalizers, normalizers
    if METHOD == "block":
        drafted = columns < count
        target_logprobs = tl.load(state.target_logprobs + row + columns, mask=drafted, other=0.0, cache_modifier=".cg")
        draft_logprobs = tl.load(state.draft_logprobs + row + columns, mask=drafted, other=0.0, cache_modifier=".cg")
        seed, position, round_index = load_stream(streams, request, True)
        uniform_numbers = uniform(seed, ACCEPT, position + columns, round_index)
    num_accepted, plan, needed, invalid, log_ratios = decide_loaded(
        columns, load_token_ids(tokens, request, columns), judged, normalizers, target_logprobs, draft_logprobs,
        uniform_numbers, temperature, count, METHOD, READS_DRAFT, WIDTH_PADDED, EMITS_FROM_TARGET,
    )  # fmt: skip
    if METHOD == "block":
        tl.store(state.log_ratios + row + columns, log_ratios, mask=columns <= count)
    write_verdict(tokens, output, request, num_accepted, invalid, WIDTH_PADDED)
    return num_accepted, plan, needed
