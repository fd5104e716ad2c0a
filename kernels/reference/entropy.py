"""The entropy of rows."""

from __future__ import annotations

import torch
from torch import Tensor

from .truncation import Processed, rows_per_chunk

NUM_ROWS_PER_CHUNK = 16
"""Rows computed in full at a time, at least."""


def entropies(rows: Processed) -> Tensor:
    """[N] float64, nats."""
    found = torch.zeros_like(rows.log_normalizer)
    step = max(NUM_ROWS_PER_CHUNK, rows_per_chunk(rows.logits))
    for part in torch.arange(len(found), device=found.device).split(step):
        logprobs = rows.logprobs(part)
        # 0 log 0 := 0, where a cut token would give 0 * -inf.
        found[part] = -(logprobs.exp() * logprobs.clamp_(min=torch.finfo(torch.float64).min)).sum(dim=1)
    return found
