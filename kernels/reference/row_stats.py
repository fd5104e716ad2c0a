"""The statistics of processed rows, from which the probability of any of their tokens can be worked out again.

p(x) = exp((logit(x) - maximum) / T) / normalizer    where logit(x) >= threshold, else 0
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.contract import RowStats, Sampling
from kernels.reference.truncation import Processed, rows_per_chunk


def _smallest_survivors(rows: Processed) -> Tensor:
    """[N] float32, the smallest raw logit that survives truncation; -inf where nothing is cut."""
    found = torch.full_like(rows.log_normalizer, -torch.inf, dtype=torch.float32)
    if rows.threshold is None:
        return found
    for part in torch.arange(len(found), device=found.device).split(rows_per_chunk(rows.logits)):
        # A token is cut by comparing its scaled logit, so it is those that say which raw logits survive.
        survives = rows.scaled(part) >= rows.threshold[part, None]
        smallest = torch.where(survives, rows.logits[part].float(), torch.inf).amin(dim=1)
        found[part] = torch.where(survives.all(dim=1), -torch.inf, smallest)
    return found


def keep_row_stats(rows: Processed, sampling: Sampling, row_stats: RowStats) -> None:
    """Write the statistics of N rows into `row_stats`.

    Args:
        rows: the processed rows.
        sampling: fields [N], as they were processed with.
        row_stats: fields [N], written in place. At temperature 0 the normalizer is 1 and nothing is cut; a row without
            a distribution has the normalizer NaN.
    """
    maximum = rows.logits.amax(dim=1).float()
    greedy = sampling.temperature == 0
    normalizer = rows.log_normalizer.exp().masked_fill(greedy, 1.0).masked_fill(rows.invalid, torch.nan)
    row_stats.maximum.copy_(maximum)
    row_stats.normalizer.copy_(normalizer)
    row_stats.threshold.copy_(_smallest_survivors(rows).masked_fill(greedy | rows.invalid, -torch.inf))
