"""From logits to the processed distribution: temperature, then top-k, then top-p, then min-p.

Letters: N rows, V entries of the vocabulary at hand (the target's or the drafter's).

Every cut is a threshold on the logit, so what survives depends on the values and never on the order of the
vocabulary: tokens that tie with the last survivor survive with it. For top-k and min-p that is what the common engines
do (they compare with the k-th largest value, and with a fraction of the largest); for top-p, where they break a tie by
the order in which their sort happens to leave it, it makes the processed distribution well defined.

    top-k   keeps the k largest logits
    top-p   keeps the smallest set of largest probabilities, renormalised after top-k, whose mass reaches top_p;
            at least one token
    min-p   keeps probabilities of at least min_p times the largest, which is the same before and after the other cuts

Temperature 0 puts everything on the largest logit, the lowest id among equals.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from kernels.contract import Sampling

FIRST_WIDTH = 256
"""Largest logits that are looked at first for the top-k and top-p thresholds; few rows need more."""
WIDENING = 8


class Processed(NamedTuple):
    """N processed distributions. An invalid row has all its mass on token 0, so nothing downstream meets a NaN."""

    scaled: Tensor
    """[N, V] float64, logits over temperature; -inf where cut."""
    log_normalizer: Tensor
    """[N] float64, log of the sum of exponentials of `scaled`."""
    invalid: Tensor
    """[N] bool, the row of logits was all -inf, or held NaN or +inf."""

    def logprobs(self) -> Tensor:
        """[N, V] float64."""
        return self.scaled - self.log_normalizer[:, None]

    def probs(self, rows: Tensor) -> Tensor:
        """[n, V] float64, the distributions in `rows` ([n] int64)."""
        return (self.scaled[rows] - self.log_normalizer[rows, None]).exp_()

    def logprobs_at(self, rows: Tensor, token_ids: Tensor) -> Tensor:
        """float64, shaped as `rows` and `token_ids` (int64) broadcast."""
        return self.scaled[rows, token_ids] - self.log_normalizer[rows]


def sampling_rows(sampling: Sampling, index: Tensor) -> Sampling:
    """The sampling parameters of the requests in `index` ([N] int64), with fields [N]."""
    fields = ("temperature", "top_k", "top_p", "min_p")
    return replace(sampling, **{name: getattr(sampling, name)[index] for name in fields})


def _threshold_of_mass(
    ordered: Tensor, top_k: Tensor, top_p: Tensor, scaled: Tensor
) -> tuple[Tensor, Tensor]:  # [n, W], [n], [n], [n, V]
    """Thresholds of top-k and top-p from the W largest values, and which rows they are final for.

    Returns:
        ([n] float64 threshold, [n] bool).
    """
    width, vocab_size = ordered.shape[1], scaled.shape[1]
    kth = ordered.gather(1, (top_k - 1).clamp(0, width - 1)[:, None])
    kth = torch.where((top_k > 0)[:, None], kth, -torch.inf)
    total = torch.logsumexp(scaled.masked_fill(scaled < kth, -torch.inf), dim=1, keepdim=True)
    mass = (ordered - total).exp().masked_fill(ordered < kth, 0.0)
    mass_through = mass.cumsum(dim=1)
    num_kept = ((mass_through - mass) < top_p[:, None]).sum(dim=1, keepdim=True).clamp(min=1)
    nucleus = torch.where((top_p < 1)[:, None], ordered.gather(1, num_kept - 1), -torch.inf)
    final = (top_k <= width) & ((top_p >= 1) | (mass_through[:, -1] >= top_p))
    return torch.maximum(kth, nucleus)[:, 0], final | (width == vocab_size)


def _thresholds(scaled: Tensor, sampling: Sampling) -> Tensor:
    """[N, V] float64, [N] -> [N] float64: the smallest scaled logit that survives, -inf where nothing is cut."""
    vocab_size = scaled.shape[1]
    threshold = scaled.amax(dim=1) + sampling.min_p.double().log()
    top_k = torch.where(sampling.top_k < vocab_size, sampling.top_k, 0)
    top_p = sampling.top_p.double()
    rows = ((top_k > 0) | (top_p < 1)).nonzero()[:, 0]
    width = FIRST_WIDTH
    while len(rows):
        values = scaled[rows]
        ordered = values.topk(min(width, vocab_size), dim=1).values
        found, final = _threshold_of_mass(ordered, top_k[rows], top_p[rows], values)
        threshold[rows[final]] = torch.maximum(threshold[rows[final]], found[final])
        rows, width = rows[~final], width * WIDENING
    return threshold


def processed(logits: Tensor, sampling: Sampling) -> Processed:
    """The processed distributions of N rows.

    Args:
        logits: [N, V], any floating dtype.
        sampling: fields [N].
    """
    greedy = sampling.temperature == 0
    temperature = torch.where(greedy, 1.0, sampling.temperature).double()
    scaled = logits.to(torch.float64, copy=True)
    if bool((temperature != 1).any()):
        scaled /= temperature[:, None]
    if bool(((sampling.top_k > 0) | (sampling.top_p < 1) | (sampling.min_p > 0)).any()):
        scaled.masked_fill_(scaled < _thresholds(scaled, sampling)[:, None], -torch.inf)
    log_normalizer = torch.logsumexp(scaled, dim=1)
    invalid = ~log_normalizer.isfinite()
    certain = (greedy | invalid).nonzero()[:, 0]
    if len(certain):
        token_ids = torch.where(invalid[certain], 0, logits[certain].argmax(dim=1))
        scaled[certain] = -torch.inf
        scaled[certain, token_ids] = 0.0
        log_normalizer[certain] = 0.0
    return Processed(scaled, log_normalizer, invalid)


def process(logits: Tensor, sampling: Sampling) -> Tensor:
    """Log-probabilities after temperature, top-k, top-p and min-p.

    Args:
        logits: [N, V], any floating dtype.
        sampling: fields [N]; use `sampling_rows` to gather them.

    Returns:
        [N, V] float64, -inf where cut. A row that is all -inf or holds NaN or +inf comes back with all mass on token 0.
    """
    return processed(logits, sampling).logprobs()
