"""What the token after the accepted ones is drawn from: the weight w(x) = [p(x) / S - k q(x)]+ of every token.

In the units of the target row, whose normalizer is S. Where the target's own distribution is meant, k = 0; after the
rejection of a one-hot proposal that token's weight is 0 too.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..rows.addresses import draft_row, row_address
from ..rows.softmax_weights import reciprocal, scale, weigh
from ..rows.token_mask import GROUP_BITS, draft_mask_row, only_allowed, target_mask_row
from ..rows.unaligned import load_logits, load_row, row_lead
from .accept_count import FROM_RESIDUAL, FROM_TARGET_WITHOUT


@triton.jit
def open_rows(
    target, draft, tokens, state, temperature, request, slot, index, plan, stats,
    METHOD: tl.constexpr, READS_DRAFT: tl.constexpr,
):  # fmt: skip
    """What `residual_weights` needs to know of the rows after `index` accepted tokens, read once.

    Args:
        slot: of the request's draft rows; only used where they are read.
        stats: of the target row: maximum, normalizer, threshold.

    Returns:
        (target row, its maximum and threshold; draft row, its maximum and threshold, number of its ids that are
        read, -k = -S_p / (P S_q); removed token, -1 for none; the scale's two parts; S_p; the numbers of the target
        row's and the draft row's words in their masks). Without a draft row no id is read; with one no token is
        removed, because what is rejected at temperature 0 is not the argmax anyway.
    """
    compares = plan >= FROM_RESIDUAL
    drafted = (stats[0], stats[2], stats[1])
    log_ratio = tl.full((), 0.0, tl.float64)
    if READS_DRAFT:
        _, at = draft_row(draft, slot, tl.where(compares, index, 0))
        drafted = (
            tl.load(draft.maximum + at, mask=compares, other=0.0),
            tl.load(draft.threshold + at, mask=compares, other=0.0),
            tl.load(draft.normalizer + at),
        )
        if METHOD.count is not None:
            log_ratio = tl.load(state.log_ratios + request.to(tl.int64) * (tokens.width + 1) + index)
    return open_loaded_rows(
        target, draft, tokens, temperature, request, slot, index, plan, stats, drafted, log_ratio, METHOD, READS_DRAFT
    )


@triton.jit
def open_loaded_rows(
    target, draft, tokens, temperature, request, slot, index, plan, stats, drafted, log_ratio,
    METHOD: tl.constexpr, READS_DRAFT: tl.constexpr, ahead=None,
):  # fmt: skip
    """`open_rows` with the statistics of the draft row loaded already.

    Args:
        drafted: of the draft row: maximum, threshold, normalizer; only used where draft rows are read, and the last
            only without `ahead`.
        log_ratio: float64 log P; only used by rules that count.
        ahead: (1 / S_q, the two parts of the scale), where they were worked out before the target row was summed.
    """
    maximum, normalizer, threshold = stats
    row_logits = row_address(target, tokens, request, index)
    removed = tl.full((), -1, tl.int32)
    if not READS_DRAFT:
        is_without = plan == FROM_TARGET_WITHOUT
        rejected = tokens.token_ids + request.to(tl.int64) * tokens.stride + index
        removed = tl.load(rejected, mask=is_without, other=-1).to(tl.int32)
    draft_logits = row_logits
    draft_maximum = maximum
    draft_threshold = threshold
    num_ids = 0
    negated = tl.full((), 0.0, tl.float32)
    if READS_DRAFT:
        compares = plan >= FROM_RESIDUAL
        draft_logits, _ = draft_row(draft, slot, tl.where(compares, index, 0))
        draft_maximum, draft_threshold, draft_normalizer = drafted
        # Masks leave no registers for what a division would keep.
        if ahead is None and target.mask_words is None and draft.mask_words is None:
            ratio = normalizer / draft_normalizer
            if METHOD.count is not None:
                ratio = ratio / tl.exp(log_ratio)
        else:
            if ahead is None:
                ratio = normalizer * reciprocal(draft_normalizer)
            else:
                ratio = normalizer * ahead[0]
            if METHOD.count is not None:
                ratio = ratio * tl.exp(-log_ratio)
        num_ids = tl.where(compares, draft.vocab_size, 0)
        negated = -tl.where(compares, ratio, 0.0).to(tl.float32)
    if ahead is not None:
        high, low = ahead[1]
    else:
        high, low = scale(temperature)
    return (
        row_logits, maximum, threshold,
        draft_logits, draft_maximum, draft_threshold, num_ids, negated,
        removed, high, low, normalizer,
        target_mask_row(target, tokens, request, index, True),
        draft_mask_row(draft, slot, index, plan >= FROM_RESIDUAL),
    )  # fmt: skip


@triton.jit
def residual_weights(
    target, draft, opened, offsets, READS_DRAFT: tl.constexpr, TRUNCATED: tl.constexpr, removed=None,
    METHOD: tl.constexpr = None, rule=None,
):  # fmt: skip
    """float32 weights of the tokens at `offsets` as the next one: [p - k q]+ without the removed token.

    `offsets` are places of the target row as kernels.rows.unaligned.load_row counts them.

    Args:
        removed: (address of token ids, their number), of further tokens to leave out where no draft row is read.
        METHOD: the hooks of a rule that may have weights of its own; None: those above.
    """
    weights = target_weights(target, opened, offsets, TRUNCATED)
    if READS_DRAFT:
        covered = draft_weights(target, draft, opened, offsets, TRUNCATED)
        if METHOD is not None and METHOD.residual is not None:
            # nothing is compared where the target's own distribution is meant
            residual = METHOD.residual(rule, weights, covered * -opened[7])
            return tl.where(opened[7] == 0, weights, residual)
        else:
            return tl.maximum(tl.fma(covered, opened[7], weights), 0.0)
    else:
        before = row_lead(opened[0], target.lead)
        left = 0.0
        if METHOD is not None and METHOD.left is not None:
            left = METHOD.left(rule, weights)
        weights = tl.where(offsets == opened[8] + before, left, weights)
        if removed is not None:
            weights = without_tokens(weights, offsets - before, removed)
        return weights


@triton.jit
def target_weights(target, opened, offsets, TRUNCATED: tl.constexpr):
    """float32 weights of the target row alone, in units of its maximum."""
    GROUP: tl.constexpr = GROUP_BITS // target.logits.dtype.element_ty.primitive_bitwidth
    row_logits, maximum, threshold = opened[0], opened[1], opened[2]
    logits = load_row(row_logits, offsets, target.vocab_size, target.in_words, target.lead)
    target_mask = (target.mask_words, target.mask_stride, target.num_mask_words, target.mask_token_ids, opened[12])
    logits = only_allowed(logits, offsets, target.vocab_size, target_mask, GROUP)
    weights = weigh(logits, maximum, opened[9], opened[10])
    if TRUNCATED:
        weights = tl.where(logits >= threshold, weights, 0.0)
    return weights


@triton.jit
def draft_weights(target, draft, opened, offsets, TRUNCATED: tl.constexpr):
    """float32 weights of the draft row alone, in units of its own maximum."""
    GROUP: tl.constexpr = GROUP_BITS // target.logits.dtype.element_ty.primitive_bitwidth
    draft_logits, draft_maximum, draft_threshold, num_ids = opened[3], opened[4], opened[5], opened[6]
    before = row_lead(opened[0], target.lead)
    if draft.to_draft_ids is None:
        if target.lead is None:
            proposed = load_logits(draft_logits, offsets, num_ids, draft.in_words, None)
        else:
            proposed = load_logits(draft_logits, offsets, num_ids, target.lead, before)
    else:
        tokens = offsets
        inside = offsets < target.vocab_size
        if target.lead is not None:
            tokens = offsets - before
            inside = (tokens >= 0) & (tokens < target.vocab_size)
        ids = tl.load(draft.to_draft_ids + tokens, mask=inside, other=-1)
        known = (ids >= 0) & (ids < num_ids)
        proposed = tl.load(draft_logits + ids, mask=known, other=-float("inf")).to(tl.float32)
    # Also of a smaller vocabulary: the offsets are ids of the target's.
    draft_mask = (draft.mask_words, draft.mask_stride, draft.num_mask_words, draft.mask_token_ids, opened[13])
    proposed = only_allowed(proposed, offsets, target.vocab_size, draft_mask, GROUP)
    covered = weigh(proposed, draft_maximum, opened[9], opened[10])
    if TRUNCATED:
        covered = tl.where(proposed >= draft_threshold, covered, 0.0)
    return covered


@triton.jit
def without_tokens(weights, token_ids, removed):
    """The weights of some tokens, 0 for those that are removed: (address of token ids, their number)."""
    for place in range(removed[1]):
        weights = tl.where(token_ids == tl.load(removed[0] + place, cache_modifier=".cg"), 0.0, weights)
    return weights
