"""The acceptance test of one draft token, once the sums of its target row are known.

    probabilistic, strict, lenient   u * l * q(X) < p(X), strict with a one-hot q
    typical                          p(X) > min(epsilon, delta * exp(-H(p)))
    synthetic                        u * a_{i-1} < a_i
    coupled                          X is what the target draws with the same noise, known as its row's argmax
    fly                              u * q(X) < p(X); what fails may be OPEN to be deferred (kernels.fly)
    block                            no test yet: log p(X) and log q(X) are kept for kernels.decide
    temperature 0                    X is the argmax, under every method but synthetic; fly may defer others
    greedy above temperature 0       not defined: every draft token is impossible

All of it is float64 arithmetic on single tokens. The reference twin is kernels.reference.verify.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .addresses import draft_row, draft_slot
from .device_streams import ACCEPT, COUPLED, to_unit, uniform, words
from .device_weights import log_probability
from .token_mask import allowed_logit, draft_mask_row

PASSED: tl.constexpr = tl.constexpr(1)
REJECTED: tl.constexpr = tl.constexpr(2)
IMPOSSIBLE: tl.constexpr = tl.constexpr(3)
"""A draft token that cannot be verified: outside the vocabulary, or with a row that has no distribution, or one that
its draft distribution cannot have produced; under greedy verification any, at a temperature above 0."""
OPEN: tl.constexpr = tl.constexpr(4)
"""Of fly: rejected, unless those that follow it pass; the target has entropy enough, and the token is possible."""
EPSILON: tl.constexpr = tl.constexpr(0)
DELTA: tl.constexpr = tl.constexpr(1)
LENIENCY: tl.constexpr = tl.constexpr(2)
RATES: tl.constexpr = tl.constexpr(3)
"""Where the method's parameters stand in the rule, [3 + 1 + K] float64; the rates begin with a_0 = 1."""
FLY_THRESHOLD: tl.constexpr = tl.constexpr(0)
FLY_TOP_K: tl.constexpr = tl.constexpr(1)
FLY_WINDOW: tl.constexpr = tl.constexpr(2)
"""The same in a rule of fly."""
RULES = ("strict", "coupled", "greedy", "probabilistic", "block", "typical", "lenient", "fly", "synthetic", "pr35461")
"""Methods that `accept_or_reject` and kernels.decide know; kernels.verify refuses others before a launch."""
SHARED_DRAW: tl.constexpr = tl.constexpr(-(2**31))
"""kernels.reference.pr35461.ACCEPT_DRAW as a 32-bit integer."""


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
        stream: of the request, from kernels.device_streams.load_stream.
        mask: of the target row: as for kernels.token_mask.allows.
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
    if METHOD == "pr35461":
        first, second, _, _ = words(seed, COUPLED, position, position * 0, SHARED_DRAW)
        uniform_number = to_unit(first, second)
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
def rejection_limit(rule, draft_prob, uniform_number, METHOD: tl.constexpr):
    """float64 u * l * q(X): a draft token that is compared with q passes where p(X) is above it."""
    if METHOD == "lenient":
        return uniform_number * (draft_prob * tl.load(rule + LENIENCY))
    else:
        return uniform_number * draft_prob


@triton.jit
def accept_or_reject(target, rule, temperature, index, prepared, stats, METHOD: tl.constexpr, unnormalized=None):
    """(PASSED, REJECTED, IMPOSSIBLE or OPEN; float64 log p(X)), for the draft token at `index`, or for several.

    Args:
        prepared: from `prepare`.
        stats: of its target row: maximum, normalizer, threshold, argmax, entropy.
        unnormalized: where nothing is cut from the row: (`rejection_limit` of the token, its weight
            exp((logit - maximum) / T) in float64), neither of which waits for the normalizer. Of log q(X) it only
            matters then whether it is -inf. Not used by block.
    """
    token, logit, proposed, uniform_number = prepared
    maximum, normalizer, threshold, argmax, entropy = stats
    known = (token >= 0) & (token < target.vocab_size) & (normalizer == normalizer)
    target_logprob = log_probability(logit, maximum, normalizer, threshold, temperature)
    certain = tl.where(token == argmax, 0.0, -float("inf")).to(tl.float64)
    target_logprob = tl.where(temperature == 0, certain, target_logprob)
    valid = known & (proposed > -float("inf"))
    if METHOD == "greedy":
        valid = valid & (temperature == 0)
    if METHOD == "block":
        passes = valid
    elif METHOD == "coupled":
        passes = token == argmax
    elif unnormalized is not None:
        tl.static_assert(METHOD == "probabilistic" or METHOD == "lenient", "expected a rule that compares with q")
        passes = tl.where(temperature == 0, token == argmax, unnormalized[0] * normalizer < unnormalized[1])
    else:
        target_prob = tl.exp(target_logprob)
        if METHOD == "synthetic":
            before = tl.load(rule + RATES + index)
            passes = uniform_number * tl.where(before > 0, before, 1.0) < tl.load(rule + RATES + 1 + index)
        elif METHOD == "typical":
            limit = tl.minimum(tl.load(rule + EPSILON), tl.load(rule + DELTA) * tl.exp(-entropy))
            passes = (target_prob > limit) | (target_prob == 1)
        else:
            tl.static_assert(
                METHOD == "strict" or METHOD == "greedy" or METHOD == "probabilistic" or METHOD == "lenient"
                or METHOD == "fly" or METHOD == "pr35461",
                "expected a method with a rule",
            )  # fmt: skip
            passes = rejection_limit(rule, tl.exp(proposed), uniform_number, METHOD) < target_prob
    judgement = tl.where(valid, tl.where(passes, PASSED, REJECTED), IMPOSSIBLE)
    if METHOD == "fly":
        # A row that is certain has the probabilities of temperature 1 here.
        possible = tl.where(temperature == 0, logit > -float("inf"), target_logprob > -float("inf"))
        is_open = (judgement == REJECTED) & possible & (entropy >= tl.load(rule + FLY_THRESHOLD))
        judgement = tl.where(is_open, OPEN, judgement)
    return judgement, target_logprob
