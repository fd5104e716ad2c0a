"""The autoregressive baseline: proposes nothing, so that every round is one token drawn from the target."""

from __future__ import annotations

import torch

from harness.drafters.protocol import Batch, StatelessDrafter
from kernels.contract import Draft


class NoDrafter(StatelessDrafter):
    """K = 0, whatever is asked for."""

    def propose(self, batch: Batch) -> Draft:
        return Draft(batch.lengths.new_empty(batch.num_rows, 0), torch.zeros_like(batch.lengths))
