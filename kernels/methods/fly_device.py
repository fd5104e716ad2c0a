"""FLy on the device: the entropy of a row's most likely tokens, and which rejected draft tokens are deferred.

The entropy is summed value by value, the largest logits first. Its next one lies in the chunk with the largest maximum
of what is left, so that at most k chunks of a row are read again, from the L2 cache, and no list of tokens is kept.
Equal logits count together. The reference twin is kernels.methods.fly.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..chain.acceptance import OPEN, PASSED
from ..rows.softmax_weights import inverse
from ..rows.token_mask import only_allowed
from ..rows.unaligned import load_row
from .hooks import OWN, Hooks
from .probabilistic_device import compared_with_draft

WINDOW: tl.constexpr = tl.constexpr(0)
THRESHOLD: tl.constexpr = tl.constexpr(1)
TOP_K: tl.constexpr = tl.constexpr(2)
"""Where the parameters stand."""
MOST: tl.constexpr = tl.constexpr(2**30)
"""Beyond any vocabulary and any draft."""


@triton.jit
def _parameter(parameters, place):
    """int32, a whole number among the method's parameters."""
    return tl.minimum(tl.load(parameters + place), MOST).to(tl.int32)


@triton.jit
def _below(
    target, row_logits, mask, first, num_places, value, TILE: tl.constexpr, GROUP: tl.constexpr
):  # fmt: skip
    """(int32 number of logits equal to `value`, the largest float32 logit below it) from place `first` of a row on.

    Args:
        first: a multiple of TILE; places as in kernels.rows.unaligned.load_row.
    """
    num_equal = tl.full((), 0, tl.int32)
    largest = tl.full((), -float("inf"), tl.float32)
    for step in tl.range(0, num_places, TILE):
        offsets = first + step + tl.arange(0, TILE)
        values = load_row(row_logits, offsets, target.vocab_size, target.in_words, target.lead)
        values = only_allowed(values, offsets, target.vocab_size, mask, GROUP)
        num_equal += tl.sum((values == value).to(tl.int32), axis=0)
        largest = tl.maximum(largest, tl.max(tl.where(values < value, values, -float("inf")), axis=0))
    return num_equal, largest


@triton.jit
def _added(entropy, value, num_equal, left, maximum, log_normalizer, temperature):
    """(entropy with so many more tokens of one logit, number of tokens that are still left)."""
    logprob = (value.to(tl.float64) - maximum.to(tl.float64)) * inverse(temperature) - log_normalizer
    taken = tl.minimum(num_equal, left)
    # 0 log 0 := 0, where a logit is so low that its weight vanishes.
    return entropy - taken.to(tl.float64) * tl.exp(logprob) * tl.maximum(logprob, -1e300), left - taken


@triton.jit
def top_entropy_of_chunks(
    target, row_logits, mask, parameters, maxima, maximum, normalizer, temperature,
    TILE: tl.constexpr, CHUNK: tl.constexpr, GROUP: tl.constexpr, CHUNKS_PADDED: tl.constexpr,
):  # fmt: skip
    """Entropy in float64, nats, of the most likely tokens of a row that nothing is cut from.

    Args:
        maxima: [CHUNKS_PADDED] of its chunks.
        maximum, normalizer: of the row, at temperature 0 those of temperature 1.
        TILE: divides CHUNK.
    """
    chunks = tl.arange(0, CHUNKS_PADDED)
    log_normalizer = tl.log(normalizer)
    entropy = tl.full((), 0.0, tl.float64)
    left = _parameter(parameters, TOP_K)
    value = maximum
    while (left > 0) & (value > -float("inf")):
        chunk = tl.min(tl.where(maxima == value, chunks, CHUNKS_PADDED), axis=0)
        num_equal, below = _below(target, row_logits, mask, chunk * CHUNK, CHUNK, value, TILE, GROUP)
        entropy, left = _added(entropy, value, num_equal, left, maximum, log_normalizer, temperature)
        maxima = tl.where(chunks == chunk, below, maxima)
        value = tl.max(maxima, axis=0)
    return entropy


@triton.jit
def top_entropy_of_row(
    target, row_logits, mask, parameters, threshold, maximum, normalizer, temperature,
    LANES: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """The same of a row that is cut below the threshold, which is read again for each of its largest logits."""
    log_normalizer = tl.log(normalizer)
    entropy = tl.full((), 0.0, tl.float64)
    left = _parameter(parameters, TOP_K)
    value = maximum
    while (left > 0) & (value >= threshold) & (value > -float("inf")):
        num_equal, below = _below(target, row_logits, mask, 0, target.vocab_size, value, LANES, GROUP)
        entropy, left = _added(entropy, value, num_equal, left, maximum, log_normalizer, temperature)
        value = below
    return entropy


@triton.jit
def with_deferred(parameters, judged, columns, count, WIDTH_PADDED: tl.constexpr):
    """The judgements of a request's draft tokens, PASSED where one is deferred.

    Args:
        judged: a vector like `columns`; OPEN where the entropy would let a rejected token be deferred.
        count: draft tokens of the request.
    """
    window = _parameter(parameters, WINDOW)
    fails = (judged != PASSED) & (columns < count)
    failure = tl.min(tl.where(fails, columns, WIDTH_PADDED), axis=0)
    is_open = tl.sum(((columns == failure) & (judged == OPEN)).to(tl.int32), axis=0) > 0
    following = tl.min(tl.where(fails & (columns > failure), columns, count), axis=0)
    while is_open & (failure + window < following):
        judged = tl.where(columns == failure, PASSED, judged)
        failure = following
        is_open = tl.sum(((columns == failure) & (judged == OPEN)).to(tl.int32), axis=0) > 0
        following = tl.min(tl.where(fails & (columns > failure), columns, count), axis=0)
    return judged


@triton.jit
def is_uncertain(parameters, entropy):
    """H >= threshold."""
    return entropy >= tl.load(parameters + THRESHOLD)


HOOKS = Hooks(
    limit=compared_with_draft,
    statistic=OWN,
    of_chunks=top_entropy_of_chunks,
    of_row=top_entropy_of_row,
    may_defer=is_uncertain,
    revise=with_deferred,
)
