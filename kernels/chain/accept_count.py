"""How many draft tokens of a request are accepted, and what its next token is drawn from.

Runs once the draft tokens of all rows of the request that matter have been tested. Where a rule that counts
must compare whole rows first, it leaves the decision to the second pass and names the positions that are needed. The
plan tells what the next token is drawn from, at once or in the second pass:

    FROM_TARGET           the target's distribution: every draft token was accepted, or the next one was impossible
    FROM_TARGET_WITHOUT   the target's distribution with the rejected draft token removed: one-hot proposals
    FROM_RESIDUAL         [p - q]+
    UNDECIDED             rules that count: the second pass decides
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..random.device_streams import ACCEPT, load_stream, uniform
from .acceptance import IMPOSSIBLE, PASSED

NOTHING: tl.constexpr = tl.constexpr(0)
FROM_TARGET: tl.constexpr = tl.constexpr(1)
FROM_TARGET_WITHOUT: tl.constexpr = tl.constexpr(2)
FROM_RESIDUAL: tl.constexpr = tl.constexpr(3)
UNDECIDED: tl.constexpr = tl.constexpr(4)
MANY_COLUMNS: tl.constexpr = tl.constexpr(8)
"""With more, a rule that counts has no register for a request's number of drafts before its next token is drawn; with
fewer, none after."""


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
def decide_loaded(
    rule, columns, token_ids, judged, normalizers, target_logprobs, draft_logprobs, uniform_numbers, temperature,
    count, METHOD: tl.constexpr, READS_DRAFT: tl.constexpr, WIDTH_PADDED: tl.constexpr, EMITS_FROM_TARGET: tl.constexpr,
):  # fmt: skip
    """Decide the number of accepted tokens from vectors with an entry for each draft token; `normalizers` also has one
    for the row after the last.

    Args:
        target_logprobs, draft_logprobs, uniform_numbers: only used by rules that count.

    Returns:
        (number accepted, plan, bit mask of the positions whose residual mass is needed, whether the request is flagged,
        vector of log P_i of rules that count).
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
    if METHOD.count is not None:
        num_accepted, needed, log_ratios = METHOD.count(
            rule, columns, target_logprobs, draft_logprobs, uniform_numbers, stop, one_hot
        )
        ends = num_accepted == stop
    else:
        ends = (stop == count) | is_impossible
    undefined = tl.sum(((columns == num_accepted) & (normalizers != normalizers)).to(tl.int32)) > 0
    invalid = ends & ((is_impossible & (is_placeholder == 0)) | undefined)
    if METHOD.greedy_only:
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
    if METHOD.revise is not None:
        judged = METHOD.revise(rule, judged, columns, count, WIDTH_PADDED)
    normalizers = tl.load(
        rows.normalizer + (row + columns) * rows.stride, mask=columns <= count, other=0.0, cache_modifier=".cg"
    )
    target_logprobs, draft_logprobs, uniform_numbers = normalizers, normalizers, normalizers
    if METHOD.count is not None:
        drafted = columns < count
        target_logprobs = tl.load(state.target_logprobs + row + columns, mask=drafted, other=0.0, cache_modifier=".cg")
        draft_logprobs = tl.load(state.draft_logprobs + row + columns, mask=drafted, other=0.0, cache_modifier=".cg")
        seed, position, round_index = load_stream(streams, request, True)
        uniform_numbers = uniform(seed, ACCEPT, position + columns, round_index)
    num_accepted, plan, needed, invalid, log_ratios = decide_loaded(
        rule, columns, load_token_ids(tokens, request, columns), judged, normalizers, target_logprobs, draft_logprobs,
        uniform_numbers, temperature, count, METHOD, READS_DRAFT, WIDTH_PADDED, EMITS_FROM_TARGET,
    )  # fmt: skip
    if METHOD.count is not None:
        tl.store(state.log_ratios + row + columns, log_ratios, mask=columns <= count)
    write_verdict(tokens, output, request, num_accepted, invalid, WIDTH_PADDED)
    return num_accepted, plan, needed
