"""The acceptance test of one draft token, once the sums of its target row are known.

    limit           the rule's limit, such as u * q(X), < p(X)
    test            what the rule makes of p(X), q(X), u and a statistic of the row
    coupled noise   X is what the target draws with the same noise, known as its row's argmax
    count           no test yet: log p(X) and log q(X) are kept for kernels.chain.accept_count

The hooks are those of kernels.methods.hooks. At temperature 0 a token passes iff it is the argmax, unless the rule
ignores tokens; a rule that defers may let others pass later.
All of it is float64 arithmetic on single tokens. The reference twin is kernels.reference.verify.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..random.device_streams import ACCEPT, uniform
from ..rows.addresses import draft_row, draft_slot
from ..rows.softmax_weights import log_probability
from ..rows.token_mask import allowed_logit, draft_mask_row

PASSED: tl.constexpr = tl.constexpr(1)
REJECTED: tl.constexpr = tl.constexpr(2)
IMPOSSIBLE: tl.constexpr = tl.constexpr(3)
"""A draft token that cannot be verified: outside the vocabulary, or with a row that has no distribution, or one that
its draft distribution cannot have produced; under greedy verification any, at a temperature above 0."""
OPEN: tl.constexpr = tl.constexpr(4)
"""Of rules that defer: rejected, unless those that follow it pass; a possible token whose row lets it be deferred."""


@triton.jit
def draft_logit(draft, slot, index, token, wanted):
    """(draft logit of X in float32, -inf if the drafter does not know the token; offset of its row's statistics).

    Args:
        index, token, wanted: of one draft token or of several; where it is not wanted, nothing is loaded.
    """
    logits, stats = draft_row(draft, slot, index)
    draft_id = token
    if draft.to_draft_ids is not None:
        draft_id = tl.load(draft.to_draft_ids + token, mask=wanted, other=-1).to(tl.int64)
    known = wanted & (draft_id >= 0) & (draft_id < draft.vocab_size)
    logit = tl.load(logits + draft_id, mask=known, other=-float("inf")).to(tl.float32)
    mask = (
        draft.mask_words,
        draft.mask_stride,
        draft.num_mask_words,
        draft.mask_token_ids,
        draft_mask_row(draft, slot, index, wanted),
    )
    return allowed_logit(logit, token, known, mask), stats


@triton.jit
def draft_logprob(logit, maximum, normalizer, threshold, temperature):
    """float64 log q(X) from `draft_logit` and the statistics of the row; -inf without a logit or a distribution."""
    value = log_probability(logit, maximum, normalizer, threshold, temperature)
    return tl.where((logit > -float("inf")) & (value == value), value, -float("inf"))


@triton.jit
def load_proposal(draft, tokens, request, index, wanted):
    """(id of the draft token at `index`, slot of the request's draft rows), int64; -1 for no such token."""
    at = tokens.token_ids + request.to(tl.int64) * tokens.stride + index
    token = tl.load(at, mask=wanted & (index < tokens.width), other=-1).to(tl.int64)
    return token, draft_slot(draft, request, wanted)


@triton.jit
def prepare(
    target, draft, proposal, stream, temperature, index, row_logits, mask, METHOD: tl.constexpr,
    SUMS_DRAFTS: tl.constexpr,
):  # fmt: skip
    """All that the test of a draft token needs besides the sums of its target row.

    Args:
        proposal: from `load_proposal`.
        stream: of the request, from kernels.random.device_streams.load_stream.
        mask: of the target row: as for kernels.rows.token_mask.allows.
        SUMS_DRAFTS: the statistics of the draft row are not known yet.

    Returns:
        (its id, its target logit in float32, log q(X) in float64 or with SUMS_DRAFTS its draft logit, its uniform
        number in float64).
    """
    token, slot = proposal
    known = (token >= 0) & (token < target.vocab_size)
    logit = tl.load(row_logits + token, mask=known, other=-float("inf")).to(tl.float32)
    logit = allowed_logit(logit, token, known, mask)
    proposed = tl.full((), 0.0, tl.float64)
    if draft.logits is not None:
        if (temperature > 0) & known:
            known_logit, stats = draft_logit(draft, slot, index, token, True)
            proposed = known_logit.to(tl.float64)
            if not SUMS_DRAFTS:
                proposed = draft_logprob(
                    known_logit,
                    tl.load(draft.maximum + stats),
                    tl.load(draft.normalizer + stats),
                    tl.load(draft.threshold + stats),
                    temperature,
                )
    seed, first_position, round_index = stream
    position = first_position + index
    if METHOD.uniform is not None:
        uniform_number = METHOD.uniform(seed, position, round_index)
    else:
        uniform_number = uniform(seed, ACCEPT, position, round_index)
    return token, logit, proposed, uniform_number


@triton.jit
def keep_prepared(state, row, prepared):
    """Store the result of `prepare` for the program that finishes the row."""
    token, logit, proposed, uniform_number = prepared
    tl.store(state.draft_tokens + row, token)
    tl.store(state.draft_token_logits + row, logit)
    tl.store(state.draft_logprobs + row, proposed)
    tl.store(state.uniform_numbers + row, uniform_number)


@triton.jit
def load_prepared(state, row):
    """What `keep_prepared` stored."""
    return (
        tl.load(state.draft_tokens + row, cache_modifier=".cg"),
        tl.load(state.draft_token_logits + row, cache_modifier=".cg"),
        tl.load(state.draft_logprobs + row, cache_modifier=".cg"),
        tl.load(state.uniform_numbers + row, cache_modifier=".cg"),
    )


@triton.jit
def accept_or_reject(target, rule, temperature, index, prepared, stats, METHOD: tl.constexpr, unnormalized=None):
    """(PASSED, REJECTED, IMPOSSIBLE or OPEN; float64 log p(X)), for the draft token at `index`, or for several.

    Args:
        prepared: from `prepare`.
        stats: of its target row: maximum, normalizer, threshold, argmax, the rule's statistic.
        unnormalized: where nothing is cut from the row: (`Hooks.limit` of the token, its weight
            exp((logit - maximum) / T) in float64), neither of which waits for the normalizer. Of log q(X) it only
            matters then whether it is -inf. Not used by rules that count.
    """
    token, logit, proposed, uniform_number = prepared
    maximum, normalizer, threshold, argmax, statistic = stats
    known = (token >= 0) & (token < target.vocab_size) & (normalizer == normalizer)
    target_logprob = log_probability(logit, maximum, normalizer, threshold, temperature)
    certain = tl.where(token == argmax, 0.0, -float("inf")).to(tl.float64)
    target_logprob = tl.where(temperature == 0, certain, target_logprob)
    valid = known & (proposed > -float("inf"))
    if METHOD.greedy_only:
        valid = valid & (temperature == 0)
    if METHOD.count is not None:
        passes = valid
        if METHOD.is_own:
            passes = tl.where(temperature == 0, token == argmax, valid)
    elif METHOD.noise == "coupled":
        passes = token == argmax
    elif unnormalized is not None:
        tl.static_assert(METHOD.limit is not None, "expected a rule that compares p(X) with a limit")
        passes = tl.where(temperature == 0, token == argmax, unnormalized[0] * normalizer < unnormalized[1])
    else:
        target_prob = tl.exp(target_logprob)
        if METHOD.limit is not None:
            passes = METHOD.limit(rule, index, tl.exp(proposed), uniform_number) < target_prob
        else:
            passes = METHOD.test(rule, index, target_prob, tl.exp(proposed), uniform_number, statistic)
        if METHOD.is_own:
            passes = tl.where(temperature == 0, token == argmax, passes & (target_prob > 0))
    judgement = tl.where(valid, tl.where(passes, PASSED, REJECTED), IMPOSSIBLE)
    if METHOD.may_defer is not None:
        # A row that is certain has the probabilities of temperature 1 here.
        possible = tl.where(temperature == 0, logit > -float("inf"), target_logprob > -float("inf"))
        is_open = (judgement == REJECTED) & possible & METHOD.may_defer(rule, statistic)
        judgement = tl.where(is_open, OPEN, judgement)
    return judgement, target_logprob
