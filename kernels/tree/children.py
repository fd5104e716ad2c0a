"""The nodes of a tree of drafts: whose children they are, what their laws are, which child of a node is accepted.

Vectors have an entry for each draft token of a request. The reference twins are kernels.reference.tree_proposal and
kernels.reference.recursive.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .. import methods
from ..chain.accept_count import entry, load_token_ids
from ..chain.acceptance import draft_logit, draft_logprob
from ..random.device_streams import ACCEPT, to_unit, words
from ..rows.addresses import row_address
from ..rows.softmax_weights import log_probability
from ..rows.token_mask import allowed_logit, target_mask_row

NO_CHILD: tl.constexpr = tl.constexpr(2**20)
"""Beyond any draft token."""
NO_NODE: tl.constexpr = tl.constexpr(-2)
"""In the place of a parent: no walk comes to the draft token."""
UNKNOWN: tl.constexpr = tl.constexpr(-2)
"""In the place of a token's id: it cannot be verified."""
STRIP: tl.constexpr = tl.constexpr(16)
"""Draft tokens that are compared with all others at a time."""
SMALLEST_REST: tl.constexpr = tl.constexpr(methods.SMALLEST_REST)


@triton.jit
def first_of(columns, wanted):
    """The first draft token that is wanted, NO_CHILD for none."""
    return tl.min(tl.where(wanted, columns, NO_CHILD), axis=0)


@triton.jit
def load_nodes(target, tokens, walk, request, count, columns):
    """(ids of the draft tokens of a request, UNKNOWN for those outside the vocabulary; their parents, NO_NODE for those
    that are not in its tree), int32."""
    token_ids = load_token_ids(tokens, request, columns)
    at = walk.parents + request.to(tl.int64) * walk.parent_stride + columns
    parents = tl.load(at, mask=columns < tokens.width, other=NO_NODE)
    # a parent is smaller than its child
    is_node = (columns < count) & (parents >= -1) & (parents < columns)
    token_ids = tl.where((token_ids >= -1) & (token_ids < target.vocab_size), token_ids, UNKNOWN)
    return token_ids.to(tl.int32), tl.where(is_node, parents, NO_NODE).to(tl.int32)


@triton.jit
def children_of(nodes, node):
    """Which draft tokens are children of a node; not a place without a token, which is no node and no fault."""
    token_ids, parents = nodes
    return (parents == node - 1) & (token_ids != -1)


@triton.jit
def first_child(nodes, node, columns):
    """The place of a node's draft row, which is that of its first child; -1 without children."""
    first = first_of(columns, nodes[1] == node - 1)
    return tl.where(first < NO_CHILD, first, -1)


@triton.jit
def compare_siblings(target, tokens, walk, request, count, nodes, columns):
    """(the first sibling of each draft token, itself at times; whether it repeats the token of an earlier one)."""
    token_ids, parents = nodes
    firsts = columns
    repeats = columns < 0
    for strip in range(0, tokens.width, STRIP):
        earlier = strip + tl.arange(0, STRIP)
        ids, above = load_nodes(target, tokens, walk, request, count, earlier)
        is_sibling = (above[:, None] == parents[None, :]) & (earlier[:, None] < columns[None, :])
        firsts = tl.minimum(firsts, tl.min(tl.where(is_sibling, earlier[:, None], NO_CHILD), axis=0))
        # places without a token repeat none
        is_same = is_sibling & (ids[:, None] == token_ids[None, :]) & (token_ids[None, :] >= 0)
        repeats = repeats | (tl.max(is_same.to(tl.int32), axis=0) > 0)
    return firsts, repeats


@triton.jit
def without_repeats(nodes, repeats, temperature):
    """Nodes of distinct siblings: of those with one token only the first can be verified, unless they are certain."""
    token_ids, parents = nodes
    is_known = tl.where(repeats, temperature, 0.0) == 0
    return tl.where(is_known, token_ids, UNKNOWN), parents


@triton.jit
def load_node_logits(
    target, draft, tokens, temperature, request, slot, token_ids, wanted, above, firsts, READS_DRAFT: tl.constexpr
):
    """(which of the wanted draft tokens have a known id; their logits in the target rows of their parents and in
    the draft rows that they were drawn from, float32).

    Args:
        above: vector of parents, 0 for the context.
        firsts: vector of the places of the draft rows.
    """
    inside = wanted & (token_ids >= 0)
    mask = (
        target.mask_words,
        target.mask_stride,
        target.num_mask_words,
        target.mask_token_ids,
        target_mask_row(target, tokens, request, above, inside),
    )
    logits = tl.load(row_address(target, tokens, request, above) + token_ids, mask=inside, other=-float("inf"))
    logits = allowed_logit(logits.to(tl.float32), token_ids, inside, mask)
    drafted_logits = logits
    if READS_DRAFT:
        is_compared = tl.where(inside, temperature, 0.0) != 0
        drafted_logits, _ = draft_logit(draft, slot, firsts, token_ids, is_compared)
    return inside, logits, drafted_logits


@triton.jit
def judge(node_logits, token_ids, temperature, stats, draft_stats, READS_DRAFT: tl.constexpr):
    """(which draft tokens can be verified, p(X) and q(X) of each in float64; q is 1 for one-hot proposals).

    Args:
        node_logits: from `load_node_logits`.
        stats: of the target rows: maximum, normalizer, threshold, argmax; numbers or vectors.
        draft_stats: of the draft rows: maximum, normalizer, threshold; only used where they are read.
    """
    inside, logits, drafted_logits = node_logits
    maximum, normalizer, threshold, argmax = stats
    target_probs = tl.exp(log_probability(logits, maximum, normalizer, threshold, temperature))
    target_probs = tl.where(temperature == 0, (token_ids == argmax).to(tl.float64), target_probs)
    # NaN also for a row without a distribution
    valid = tl.where(inside, normalizer, float("nan"))
    usable = valid == valid
    draft_probs = tl.full(target_probs.shape, 1.0, tl.float64)
    if READS_DRAFT:
        if temperature != 0:
            logprobs = draft_logprob(drafted_logits, draft_stats[0], draft_stats[1], draft_stats[2], temperature)
            usable = usable & (logprobs > -float("inf"))
            draft_probs = tl.exp(logprobs)
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
            tl.store(removed + num_removed, token.to(tl.int64))
            num_removed += 1
            target_probs = tl.where(token_ids == token, 0.0, target_probs)
        place = first_of(columns, usable & (columns > place))
    return accepted, num_removed
