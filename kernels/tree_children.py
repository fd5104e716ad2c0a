"""The children of a node of a tree of drafts: which there are, what their laws are, which is accepted.

Vectors have an entry for each draft token of a request, children or not. The reference twins are
kernels.reference.tree_proposal and kernels.reference.recursive.
"""

from __future__ import annotations

import triton
import triton.language as tl

from . import methods
from .acceptance_test import draft_logit, draft_logprob
from .addresses import row_address
from .decide import entry, load_token_ids
from .device_streams import ACCEPT, to_unit, words
from .device_weights import log_probability
from .token_mask import allowed_logit, target_mask_row

NO_CHILD: tl.constexpr = tl.constexpr(2**20)
"""Beyond any draft token."""
SMALLEST_REST: tl.constexpr = tl.constexpr(methods.SMALLEST_REST)


@triton.jit
def first_of(columns, wanted):
    """The first draft token that is wanted, NO_CHILD for none."""
    return tl.min(tl.where(wanted, columns, NO_CHILD), axis=0)


@triton.jit
def load_children(tokens, walk, request, node, count, columns):
    """(all draft tokens of the request, which of their places are children of a node, which of these hold a token)."""
    token_ids = load_token_ids(tokens, request, columns)
    at = walk.parents + request.to(tl.int64) * walk.parent_stride + columns
    parents = tl.load(at, mask=columns < tokens.width, other=-2)
    # a parent is smaller than its child
    is_child = (columns < count) & (parents == node - 1) & (columns >= node)
    # -1 is a place without a token: no node, and no fault
    return token_ids, is_child, is_child & (token_ids != -1)


@triton.jit
def first_child(tokens, walk, request, node, count, columns):
    """The place of a node's draft row, which is that of its first child; -1 without children."""
    _, is_child, _ = load_children(tokens, walk, request, node, count, columns)
    first = first_of(columns, is_child)
    return tl.where(first < NO_CHILD, first, -1)


@triton.jit
def judge_children(
    target, draft, tokens, temperature, request, slot, node, first, token_ids, drafted, columns, stats, draft_stats,
    READS_DRAFT: tl.constexpr, IS_DISTINCT: tl.constexpr,
):  # fmt: skip
    """(which children can be verified, p(X) and q(X) of each in float64; q is 1 for one-hot proposals).

    Args:
        first: place of the draft row that they were drawn from.
        drafted: from `load_children`.
        stats: of the node's target row: maximum, normalizer, threshold, argmax.
        draft_stats: of the draft row: maximum, normalizer, threshold; only used where it is read.
    """
    maximum, normalizer, threshold, argmax = stats
    inside = drafted & (token_ids >= 0) & (token_ids < target.vocab_size)
    mask = (
        target.mask_words,
        target.mask_stride,
        target.num_mask_words,
        target.mask_token_ids,
        # Triton's interpreter does not broadcast a scalar in `&`.
        target_mask_row(target, tokens, request, columns * 0 + node, inside),
    )
    logits = tl.load(row_address(target, tokens, request, node) + token_ids, mask=inside, other=-float("inf"))
    logits = allowed_logit(logits.to(tl.float32), token_ids, inside, mask)
    target_probs = tl.exp(log_probability(logits, maximum, normalizer, threshold, temperature))
    target_probs = tl.where(temperature == 0, (token_ids == argmax).to(tl.float64), target_probs)
    # NaN where there is none, and for a row without a distribution
    valid = tl.where(inside, normalizer, float("nan"))
    usable = valid == valid
    draft_probs = tl.full(target_probs.shape, 1.0, tl.float64)
    if READS_DRAFT:
        if temperature != 0:
            places = columns * 0 + tl.maximum(first, 0)
            drafted_logits, _ = draft_logit(draft, slot, places, token_ids, inside)
            logprobs = draft_logprob(drafted_logits, draft_stats[0], draft_stats[1], draft_stats[2], temperature)
            usable = usable & (logprobs > -float("inf"))
            draft_probs = tl.exp(logprobs)
            if IS_DISTINCT:
                place = first_of(columns, usable)
                while place < NO_CHILD:
                    # of distinct siblings none repeats another
                    token = entry(token_ids, columns, place)
                    usable = usable & ((columns <= place) | (token_ids != token))
                    place = first_of(columns, usable & (columns > place))
    return usable, tl.where(usable, target_probs, 0.0), tl.where(usable, draft_probs, 0.0)


@triton.jit
def accept_uniforms(stream, level, columns):
    """float64 acceptance uniforms of the children of a node at depth `level`: see kernels.reference.tree_shape."""
    seed, position, round_index = stream
    first, second, _, _ = words(seed, ACCEPT, position + level, round_index, columns - level)
    return to_unit(first, second)


@triton.jit
def accept_certain(removed, columns, token_ids, usable, target_probs, uniform_numbers):
    """Recursive rejection of one-hot proposals, all children of a node at once.

        accept x with probability p(x) / (1 - the probabilities of the children before it)

    Args:
        removed: address for the ids of the rejected ones.

    Returns:
        (the accepted child or NO_CHILD, number of rejected ones whose probability is left out).
    """
    left = tl.full((), 1.0, tl.float64)
    accepted = tl.full((), NO_CHILD, tl.int32)
    num_removed = tl.full((), 0, tl.int32)
    place = first_of(columns, usable)
    while (place < NO_CHILD) & (accepted == NO_CHILD):
        prob = entry(target_probs, columns, place)
        token = entry(token_ids, columns, place)
        if entry(uniform_numbers, columns, place) * left < prob:
            accepted = place
        elif prob > 0:
            left = tl.where(left > prob, left - prob, left)
            tl.store(removed + num_removed, token)
            num_removed += 1
            target_probs = tl.where(token_ids == token, 0.0, target_probs)
        place = first_of(columns, usable & (columns > place))
    return accepted, num_removed
