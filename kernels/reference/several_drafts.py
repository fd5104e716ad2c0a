"""Exact acceptance of the rules for several drafts of a position, before the drafts are drawn.

    recursive rejection, independent drafts     1 - prod_k (1 - sum_x min(r_k(x), q(x))),  r_1 = p,
    (SpecInfer, arXiv 2305.09781)               r_{k+1} = [r_k - q]+ normalised
    recursive rejection, two distinct drafts    b_1 + sum_x [q(x) - p(x)]+ sum_y min(r_2(y), q(y) / (1 - q(x)))
    K-SEQ, independent drafts                   1 - (1 - b)^n,  b = sum_x min(q(x), p(x) / rho),
    (SpecTr, arXiv 2310.15141)                  rho in [1, n] with 1 - (1 - b)^n = rho b

b_1 = sum min(p, q). A first draft x is rejected with the mass [q - p]+, which lies where r_2 = 0, so the second sum
needs no care about y = x. More distinct drafts depend on which were rejected and have no short form.

Shapes: N rows, V the vocabulary, n up to D drafts. The bounds of any rule: kernels.reference.optimal_acceptance.
"""

from __future__ import annotations

import torch
from torch import Tensor

NUM_HALVINGS = 60
"""Of the interval of rho, down to the rounding of float64."""


def recursive_acceptance(target_probs: Tensor, draft_probs: Tensor, max_drafts: int) -> Tensor:
    """Probability that recursive rejection accepts one of n = 1 .. D independent drafts.

    Args:
        target_probs: [N, V] float64, rows sum to 1.
        draft_probs: [N, V] float64, rows sum to 1.
        max_drafts: D, 1 or more.

    Returns:
        [N, D] float64.
    """
    left, all_rejected, found = target_probs, torch.ones_like(target_probs[:, 0]), []
    for _ in range(max_drafts):
        all_rejected = all_rejected * (1.0 - torch.minimum(left, draft_probs).sum(dim=1)).clamp(min=0.0)
        found.append(1.0 - all_rejected)
        left = normalised((left - draft_probs).clamp(min=0.0))
    return torch.stack(found, dim=1)


def recursive_pair_acceptance(target_probs: Tensor, draft_probs: Tensor) -> Tensor:
    """The same of two distinct drafts; O(V log V) a row.

    Where q has one token, there is no second draft.

    Args:
        target_probs: [N, V] float64, rows sum to 1.
        draft_probs: [N, V] float64, rows sum to 1.

    Returns:
        [N] float64.
    """
    first = torch.minimum(target_probs, draft_probs).sum(dim=1)
    residual = normalised((target_probs - draft_probs).clamp(min=0.0))
    # sum_y min(r(y), s q(y)) = r of the tokens with r / q below s, and s q of the others
    ordered, order = ratios(residual, draft_probs).sort(dim=1)
    below, beyond = cumulative(residual.gather(1, order)), cumulative(draft_probs.gather(1, order).flip(1)).flip(1)
    scale = 1.0 / (1.0 - draft_probs)
    place = torch.searchsorted(ordered, scale)
    # of a token that has all the mass nothing is beyond it, and its scale is infinite
    second = below.gather(1, place) + torch.where(scale.isfinite(), scale, 0.0) * beyond.gather(1, place)
    rejected = (draft_probs - target_probs).clamp(min=0.0)
    return first + (rejected * torch.where(scale.isfinite(), second, 0.0)).sum(dim=1)


def kseq_ratio(target_probs: Tensor, draft_probs: Tensor, num_drafts: Tensor) -> tuple[Tensor, Tensor]:
    """rho of K-SEQ, and the mass M that it leaves, by bisection.

    With y = 1 - b the equation above is y^n = M(rho) = sum_x [p(x) - rho q(x)]+ and rho = 1 + y + .. + y^(n-1). The
    right side falls with rho, so that there is one root, and neither side cancels where M is tiny.

    Args:
        target_probs: [N, V] float64, rows sum to 1.
        draft_probs: [N, V] float64, rows sum to 1.
        num_drafts: [N] int64, n of each row, 1 or more.

    Returns:
        ([N] float64 rho in [1, n], not below the root but for rounding; [N] float64 M(rho)).
    """
    ratio, left = _kseq_ratios(target_probs, draft_probs, num_drafts[:, None])
    return ratio[:, 0], left[:, 0]


def _kseq_ratios(target_probs: Tensor, draft_probs: Tensor, num_drafts: Tensor) -> tuple[Tensor, Tensor]:
    """The same of several numbers of drafts a row, [N, C] each: rows are sorted once."""
    ordered, order = ratios(target_probs, draft_probs).sort(dim=1)
    target_beyond, draft_beyond = (
        cumulative(probs.gather(1, order).flip(1)).flip(1) for probs in (target_probs, draft_probs)
    )

    def left(rho: Tensor) -> Tensor:
        """[N, C] M: p - rho q of the tokens whose p / q is rho or more."""
        place = torch.searchsorted(ordered, rho)
        return (target_beyond.gather(1, place) - rho * draft_beyond.gather(1, place)).clamp(min=0.0)

    count = num_drafts.double()
    low, high = torch.ones_like(count), count.clone()
    for _ in range(NUM_HALVINGS):
        middle = (low + high) / 2
        root, powers = left(middle) ** (1.0 / count), torch.ones_like(middle)
        for index in range(1, int(num_drafts.max()) if len(num_drafts) else 1):
            powers = torch.where(index < num_drafts, powers * root + 1.0, powers)
        is_low = middle < powers
        low, high = torch.where(is_low, middle, low), torch.where(is_low, high, middle)
    return high, left(high)


def kseq_acceptance(target_probs: Tensor, draft_probs: Tensor, max_drafts: int) -> Tensor:
    """Probability that K-SEQ accepts one of n = 1 .. D independent drafts.

    Args and returns: as for `recursive_acceptance`.
    """
    counts = torch.arange(1, max_drafts + 1, device=target_probs.device).expand(len(target_probs), -1)
    _, left = _kseq_ratios(target_probs, draft_probs, counts)
    return 1.0 - left


def normalised(weights: Tensor) -> Tensor:
    """[N, V] divided by its sums; a row without mass stays 0."""
    total = weights.sum(dim=1, keepdim=True)
    return weights / torch.where(total > 0, total, 1.0)


def cumulative(values: Tensor) -> Tensor:
    """[N, V] -> [N, V + 1], the sum of the first 0 .. V."""
    return torch.nn.functional.pad(values.cumsum(dim=1), (1, 0))


def ratios(target_probs: Tensor, draft_probs: Tensor) -> Tensor:
    """[N, V] p / q of probabilities [N, V]; infinite where q is 0."""
    possible = draft_probs > 0
    return torch.where(possible, target_probs / torch.where(possible, draft_probs, 1.0), torch.inf)
