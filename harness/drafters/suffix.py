"""Suffix decoding: what followed the longest suffix of the sequence before (arXiv 2411.04975, 2411.10666).

It is looked up in the request's own text, or in those of other requests too. No model; drafts on the host.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.config.drafter import DrafterConfig, DrafterTraits
from harness.config.models import require

if TYPE_CHECKING:
    from harness.drafters.protocol import Drafter
    from harness.drafters.registry import DrafterSetup


@dataclass(frozen=True)
class Suffix(DrafterConfig):
    suffix_min: int = 2
    """Shortest suffix that is looked up in the sequence so far."""
    suffix_factor: float = 1.0
    """Draft tokens proposed for each token of the suffix that was found."""
    suffix_history: int = 0
    """Tokens of all requests of a block that are searched together; 0 searches each request's own alone."""
    traits = DrafterTraits(
        is_one_hot=True, name="{kind} (from {suffix_min}, x {suffix_factor}, history {suffix_history})"
    )

    def __post_init__(self) -> None:
        require(self.suffix_min >= 1, "drafter.suffix_min", "at least 1", self.suffix_min)
        require(self.suffix_history >= 0, "drafter.suffix_history", "0 or more tokens", self.suffix_history)
        require(0 < self.suffix_factor < math.inf, "drafter.suffix_factor", "a number above 0", self.suffix_factor)

    @property
    def can_be_captured(self) -> bool:
        """Not: it reads tokens on the host."""
        return False

    def build(self, setup: DrafterSetup) -> Drafter:
        from harness.drafters.suffix_run import SuffixDrafter

        return SuffixDrafter(self.suffix_min, self.suffix_factor, self.suffix_history)
