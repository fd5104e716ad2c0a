"""The sampling parameters of a request: those of the cell, or its own where the workload gives some."""

from __future__ import annotations

import math
from dataclasses import dataclass

from harness.settings.models import require


@dataclass(frozen=True, slots=True)
class SamplingSettings:
    """The distribution that one request's tokens are drawn from; see kernels.contract.Sampling."""

    temperature: float = 1.0
    """0 is greedy decoding."""
    top_k: int = 0
    """0 is off."""
    top_p: float = 1.0
    """1 is off."""
    min_p: float = 0.0
    """0 is off."""

    @property
    def truncates(self) -> bool:
        """Whether something is cut from the distribution that tokens are drawn from."""
        return self.temperature > 0 and (self.top_k > 0 or self.top_p < 1 or self.min_p > 0)

    def check(self, section: str) -> None:
        """Raises ValueError for a value out of range, called `section`.NAME."""
        require(0 <= self.temperature < math.inf, f"{section}.temperature", "0 or more", self.temperature)
        require(self.top_k >= 0, f"{section}.top_k", "0 (off) or more", self.top_k)
        require(0 < self.top_p <= 1, f"{section}.top_p", "a value in (0, 1]", self.top_p)
        require(0 <= self.min_p < 1, f"{section}.min_p", "a value in [0, 1)", self.min_p)
