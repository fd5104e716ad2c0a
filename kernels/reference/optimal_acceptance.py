"""The largest probability with which any lossless rule can accept one of several drafts of a position.

Of n draft tokens at one context, a rule that keeps the target's law accepts one with at most

    alpha(n) = min over sets H of tokens { p(H) + 1 - Pr(all n drafts lie in H) }              (max-flow = min-cut)

and some rule reaches it. With p, q the target's and the draft's distribution and tokens in ascending order of p / q,
the minimum lies on a prefix of that order; P_j, Q_j are its masses:

    independent drafts, each from q      alpha(n) = min_j { P_j + 1 - Q_j^n }                   n = 1: sum min(p, q)
    distinct drafts (drawn without       alpha(n) = min_j { P_j + 1 - Pr(the n-th arrival among the first j tokens
    replacement)                                    precedes the first among the others) }, token x arriving at rate q_x
    the n best tokens of q               alpha(n) = p(these)

For two distinct drafts the race has a closed form; for more it is an integral over the time of the first arrival
outside the prefix, Pr(N >= n) of N = number of arrivals inside, whose law is Poisson binomial:

    Pr(the outside comes first) = int_0^inf c exp(-c t) Pr(N(t) < n) dt,    c = 1 - Q_j

It is a bound per position. A rule that decides about several positions together (block, traversal) is not bound by the
product of those of its positions. Source: the optimal transport of SpecTr (Sun et al., arXiv 2310.15141) and its dual
(arXiv 2502.18779). A row costs O(V log V) for the order, and for more than two distinct drafts O(V M D) for the race at
M times: 35 or more, 87 where D - 1 tokens have all the mass but 1e-9.

Shapes: N rows, V the vocabulary, n up to D drafts.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .several_drafts import ratios

MAX_DISTINCT = 8
"""Drafts without replacement, at most; MEAN_ARRIVALS is made for them."""
MAX_STEP = 0.4
"""Between two times of the quadrature, in the logarithm of the time. The error falls as exp(-pi^2 / step)."""
FIRST_TIME = 1e-4
"""Arrivals before are two terms of a series; the third is 1e-12."""
MEAN_ARRIVALS = 60.0
"""Beyond the time at which so many are due, fewer than MAX_DISTINCT have come with probability 1e-17."""
ELEMENTS_AT_A_TIME, GPU_ELEMENTS_AT_A_TIME = 2**21, 2**27
"""Numbers of a chunk of rows that are alive at once."""


class _Prefixes(NamedTuple):
    """Tokens in ascending order of p / q, and the masses of the first 1 .. V of them."""

    draft: Tensor
    """[N, V] float64, q in this order."""
    target_within: Tensor
    """[N, V] float64, P_j."""
    draft_beyond: Tensor
    """[N, V] float64, 1 - Q_j, summed from the end, so that small ones are right; 0 after the last that q can draw."""


def _prefixes(target_probs: Tensor, draft_probs: Tensor) -> _Prefixes:
    order = ratios(target_probs, draft_probs).argsort(dim=1)
    target, draft = target_probs.gather(1, order), draft_probs.gather(1, order)
    from_here = draft.flip(1).cumsum(dim=1).flip(1)
    beyond = torch.cat([from_here[:, 1:], torch.zeros_like(from_here[:, :1])], dim=1)
    return _Prefixes(draft, target.cumsum(dim=1), beyond)


def independent_bound(target_probs: Tensor, draft_probs: Tensor, max_drafts: int) -> Tensor:
    """alpha(n) of n = 1 .. D drafts that are each drawn from q.

    Args:
        target_probs: [N, V] float64, rows sum to 1.
        draft_probs: [N, V] float64, rows sum to 1.
        max_drafts: D, 1 or more.

    Returns:
        [N, D] float64.
    """
    prefixes = _prefixes(target_probs, draft_probs)
    log_within = torch.log1p(-prefixes.draft_beyond.clamp(max=1.0))
    found = [
        (prefixes.target_within - torch.expm1(num_drafts * log_within)).amin(dim=1)
        for num_drafts in range(1, max_drafts + 1)
    ]
    return torch.stack(found, dim=1).clamp(max=1.0)


def distinct_bound(target_probs: Tensor, draft_probs: Tensor, max_drafts: int) -> Tensor:
    """alpha(n) of n = 1 .. D drafts that are drawn from q without replacement.

    Where q has fewer than n tokens, all of them are drafted.

    Args:
        target_probs: [N, V] float64, rows sum to 1.
        draft_probs: [N, V] float64, rows sum to 1.
        max_drafts: D, 1 to MAX_DISTINCT.

    Returns:
        [N, D] float64; more than two drafts to about 1e-8.
    """
    assert 1 <= max_drafts <= MAX_DISTINCT
    found = [independent_bound(target_probs, draft_probs, 1)]
    if max_drafts > 1:
        prefixes = _prefixes(target_probs, draft_probs)
        found.append(_pair_bound(prefixes)[:, None])
        if max_drafts > 2:
            found.append(_race_bound(prefixes, draft_probs, max_drafts)[:, 2:])
    return torch.cat(found, dim=1).clamp(max=1.0)


def top_bound(target_probs: Tensor, draft_scores: Tensor, max_drafts: int) -> Tensor:
    """alpha(n) of the n = 1 .. D best tokens of the draft, which are no draw at all: their target mass.

    Args:
        target_probs: [N, V] float64.
        draft_scores: [N, V_draft], V_draft at least D; the largest are the best, as of logits or of probabilities laid
            over the target's vocabulary, with the same ids.
        max_drafts: D.

    Returns:
        [N, D] float64.
    """
    best = draft_scores.topk(max_drafts, dim=1).indices
    return target_probs.gather(1, best).cumsum(dim=1).clamp(max=1.0)


def _pair_bound(prefixes: _Prefixes) -> Tensor:
    """[N] of two distinct drafts: P_j + (1 - Q_j) (1 + sum_{x <= j} q_x / (1 - q_x)).

    The first draft is outside, or x is and then the second: q_x (1 - Q_j) / (1 - q_x).
    """
    draft, beyond = prefixes.draft, prefixes.draft_beyond
    others = 1.0 - draft
    # of a token that has all the mass no second draft follows, and nothing is beyond it
    odds = torch.where(others > 0, draft / torch.where(others > 0, others, 1.0), 0.0)
    bounds = prefixes.target_within + beyond * (1.0 + odds.cumsum(dim=1))
    return bounds.amin(dim=1).clamp(max=1.0)


class _Times(NamedTuple):
    """The nodes of the quadrature, M of them, of each row."""

    times: Tensor
    """[N, M] float64."""
    steps: Tensor
    """[N] float64, between the logarithms of two."""


def _times(draft_probs: Tensor, max_drafts: int) -> _Times:
    """From FIRST_TIME until the D-th of all arrivals has come for certain.

    That takes long where a few tokens have nearly all the mass: it is the mass of the others that counts.
    """
    ordered = draft_probs.sort(dim=1, descending=True).values
    others = ordered[:, max_drafts - 1 :].sum(dim=1)
    smallest = torch.where(draft_probs > 0, draft_probs, torch.inf).amin(dim=1)
    rate = torch.where(others > 0, others, smallest).clamp(min=1e-290)
    first = torch.full_like(rate, FIRST_TIME).log()
    length = (MEAN_ARRIVALS / rate).log() - first
    num_times = int((length.amax() / MAX_STEP).ceil()) + 1
    steps = length / (num_times - 1)
    index = torch.arange(num_times, device=rate.device)
    return _Times((first[:, None] + steps[:, None] * index).exp(), steps)


def _race_bound(prefixes: _Prefixes, draft_probs: Tensor, max_drafts: int) -> Tensor:
    """[N, D] the minimum over all prefixes, of D or fewer drafts; of one it is rough."""
    grid = _times(draft_probs, max_drafts)
    num_rows, vocab_size = draft_probs.shape
    # a prefix is the blocks before and the beginning of one: all blocks go through their tokens side by side
    length = max(1, round(vocab_size**0.5))
    num_blocks = -(-vocab_size // length)
    is_gpu = draft_probs.device.type != "cpu"
    budget = GPU_ELEMENTS_AT_A_TIME if is_gpu else ELEMENTS_AT_A_TIME
    chunk = max(1, budget // (num_blocks * grid.times.shape[1] * max_drafts))
    found = []
    for first in range(0, num_rows, chunk):
        rows = slice(first, first + chunk)

        def in_blocks(values: Tensor, filler: float, rows: slice = rows) -> Tensor:
            """[n, V] -> [length, n, blocks]"""
            padded = torch.nn.functional.pad(values[rows], (0, length * num_blocks - vocab_size), value=filler)
            return padded.view(len(padded), num_blocks, length).permute(2, 0, 1)

        blocks = _Prefixes(
            in_blocks(prefixes.draft, 0.0),
            in_blocks(prefixes.target_within, torch.inf),
            in_blocks(prefixes.draft_beyond, 0.0),
        )
        found.append(_race_bound_of_blocks(blocks, _Times(grid.times[rows], grid.steps[rows]), max_drafts))
    return torch.cat(found)


def _race_bound_of_blocks(blocks: _Prefixes, grid: _Times, max_drafts: int) -> Tensor:
    """[n, D]; fields of `blocks` are [length, n, blocks]."""
    times = grid.times[:, None]
    length, num_rows, num_blocks = blocks.draft.shape
    # numbers of arrivals lie outermost: each step adds long rows
    counts = times.new_zeros(max_drafts, num_rows, num_blocks, times.shape[2])
    counts[0] = 1.0
    for index in range(length):
        counts = _one_more(counts, blocks.draft[index], times)
    counts = _before(counts)
    least = times.new_ones(max_drafts, num_rows)
    for index in range(length):
        counts = _one_more(counts, blocks.draft[index], times)
        beyond = blocks.draft_beyond[index][..., None] * times
        # the integral over the logarithm of the time, by the trapezoidal rule
        weights = grid.steps[:, None, None] * beyond * torch.exp(-beyond)
        # sum over the times first: the sum over numbers of arrivals is then of few
        fewer = torch.einsum("dnbm,nbm->dnb", counts, weights).cumsum(dim=0)
        outside_first = fewer + _before_first(beyond[..., 0], grid.steps)
        least = torch.minimum(least, (blocks.target_within[index] + outside_first).amin(dim=2))
    return least.T


def _one_more(counts: Tensor, rate: Tensor, times: Tensor) -> Tensor:
    """[D, n, blocks, M] probability of 0 .. D - 1 arrivals, with a token of this rate ([n, blocks]) among them."""
    missing = torch.exp(-rate[..., None] * times)
    moved = counts * missing
    moved[1:].addcmul_(counts[:-1], 1.0 - missing)
    return moved


def _before(counts: Tensor) -> Tensor:
    """[D, n, blocks, M] arrivals in each block -> those in all blocks before it."""
    found, so_far = [], torch.zeros_like(counts[:, :, 0])
    so_far[0] = 1.0
    for block in counts.unbind(dim=2):
        found.append(so_far)
        both = so_far[:1] * block
        for number in range(1, len(counts)):
            both[number:] += so_far[number : number + 1] * block[:-number]
        so_far = both
    return torch.stack(found, dim=2)


def _before_first(beyond: Tensor, steps: Tensor) -> Tensor:
    """[n, blocks] what the trapezoidal rule has before the first time: of c t - (c t)^2, a geometric series each.

    Args:
        beyond: [n, blocks] float64, c t of the first time.
        steps: [n] float64.
    """
    step = steps[:, None]
    return step * (beyond / torch.expm1(step) - beyond**2 / torch.expm1(2 * step))
