"""The autoregressive baseline: proposes nothing, so that every round is one token drawn from the target."""

from __future__ import annotations

import torch
from torch import Tensor

from harness.drafters.protocol import Batch, TargetStep
from kernels.contract import Draft


class NoDrafter:
    """K = 0, whatever is asked for."""

    aux_layers: tuple[int, ...] = ()
    num_parameters = 0
    cache_bytes = 0
    logit_cache_bytes = 0
    drawn_rows: Tensor | None = None

    def extend(self, step: TargetStep) -> None:
        """Nothing to learn."""

    def clear(self, slot: int) -> None:
        """Nothing is kept."""

    def propose(self, batch: Batch) -> Draft:
        return Draft(batch.lengths.new_empty(batch.num_rows, 0), torch.zeros_like(batch.lengths))
