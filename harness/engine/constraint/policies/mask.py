"""Positions after a drafted marker are verified under the grammar's mask, so that nothing is cut afterwards.

Source: vLLM PR 36138 and 44297. Lossless: the target's distribution at these positions is the constrained one, whatever
the drafts were drawn from.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.config.constraint import GrammarConfig
from kernels.methods import Guarantee


@dataclass(frozen=True)
class Mask(GrammarConfig):
    """Verifies that round under masks."""

    guarantees = Guarantee.lossless, Guarantee.lossless
    masks_boundary_round = True
