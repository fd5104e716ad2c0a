"""The gate of experts of gpt-oss: (clamp(up, -limit, limit) + 1) * g * sigmoid(alpha * g), with g = min(gate, limit).

Source: OpenAI, gpt-oss-120b & gpt-oss-20b Model Card (2025); GptOssExperts of transformers, whose roundings these are.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class ClampedGate(NamedTuple):
    """Of experts in whose first weight each row of the gate is followed by its row of up."""

    alpha: float
    limit: float

    def applied(self, gate_up: Tensor) -> Tensor:
        """[N, I] of [N, 2 I]."""
        gate, up = gate_up[..., ::2].clamp(max=self.limit), gate_up[..., 1::2].clamp(-self.limit, self.limit)
        return (up + 1) * (gate * torch.sigmoid(gate * self.alpha))
