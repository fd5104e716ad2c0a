"""Top-k, top-p and min-p as one threshold per row: the smallest scaled logit that survives.

Shapes: N rows, V entries of the vocabulary at hand (the target's or the drafter's), n rows of those.

What survives depends on the values and never on the order of the vocabulary: tokens that tie with the last survivor
survive with it. For top-k and min-p that is what the common engines do (they compare with the k-th largest value, and
with a fraction of the largest); for top-p, where they break a tie by the order in which their sort happens to leave
it, it makes the processed distribution well defined.

    top-k   keeps the k largest logits
    top-p   keeps the smallest set of largest probabilities, renormalised after top-k, whose mass reaches top_p;
            at least one token
    min-p   keeps probabilities of at least min_p times the largest, which is the same before and after the other cuts
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..contract import Sampling

BINS_PER_NAT, NUM_BINS = 16, 1024
"""Bins of the distance from the largest scaled logit in which top-p looks for its threshold; the last is open.
A vocabulary that is no larger than that is sorted whole."""


def _top_k_threshold(scaled: Tensor, top_k: Tensor) -> Tensor:
    """[n, V] float64, [n] int64 in 1..V -> [n] float64: the k-th largest value."""
    ordered = scaled.topk(int(top_k.max()), dim=1).values
    return ordered.gather(1, top_k[:, None] - 1)[:, 0]


def _top_p_threshold(scaled: Tensor, top_p: Tensor) -> Tensor:
    """[n, V] float64 with -inf where already cut, [n] float64 -> [n] float64: the last value of the smallest set.

    A token belongs to the set iff the mass of the tokens before it has not reached top_p yet. Sorting whole rows
    would cost more than all the rest of verification, so the mass is first summed up by distance from the largest
    value, and only the bin in which it reaches top_p is sorted.
    """
    num_bins = NUM_BINS if scaled.shape[1] > NUM_BINS else 1
    distance = (scaled.amax(dim=1, keepdim=True) - scaled) * BINS_PER_NAT
    bins = distance.nan_to_num_(nan=0.0).clamp_(max=num_bins - 1).long()
    total = torch.logsumexp(scaled, dim=1, keepdim=True)
    mass_of_bin = scaled.new_zeros(len(scaled), num_bins).scatter_add_(1, bins, (scaled - total).exp_())
    mass_through_bin = mass_of_bin.cumsum(dim=1)
    reached = (mass_through_bin < top_p[:, None]).sum(dim=1, keepdim=True).clamp(max=num_bins - 1)
    mass_in_front = (mass_through_bin - mass_of_bin).gather(1, reached)

    inside = bins == reached
    num_inside = inside.sum(dim=1)
    ordered = scaled.masked_fill(~inside, -torch.inf).topk(int(num_inside.max()), dim=1).values
    mass = (ordered - total).exp_()
    mass_through = mass_in_front + mass.cumsum(dim=1)
    num_kept = ((mass_through - mass) < top_p[:, None]).sum(dim=1)
    # Rounding may leave the bin's last token short of top_p; what pads a shorter bin is not part of it.
    last = torch.minimum(num_kept, num_inside).clamp(min=1) - 1
    return ordered.gather(1, last[:, None])[:, 0]


def thresholds(scaled: Tensor, sampling: Sampling) -> Tensor:
    """The threshold of each row; -inf where nothing is cut.

    Args:
        scaled: [N, V] float64, logits over temperature.
        sampling: fields [N].

    Returns:
        [N] float64.
    """
    threshold = torch.full_like(scaled[:, 0], -torch.inf)
    rows = ((sampling.top_k > 0) & (sampling.top_k < scaled.shape[1])).nonzero()[:, 0]
    if len(rows):
        threshold[rows] = _top_k_threshold(scaled[rows], sampling.top_k[rows])
    rows = (sampling.top_p < 1).nonzero()[:, 0]
    if len(rows):
        left = scaled[rows]
        left.masked_fill_(left < threshold[rows, None], -torch.inf)
        threshold[rows] = torch.maximum(threshold[rows], _top_p_threshold(left, sampling.top_p[rows].double()))
    rows = (sampling.min_p > 0).nonzero()[:, 0]
    if len(rows):
        relative = scaled[rows].amax(dim=1) + sampling.min_p[rows].double().log()
        threshold[rows] = torch.maximum(threshold[rows], relative)
    return threshold
