"""What was emitted after the marker is checked when it is committed, and cut at the first refused token.

Source: vLLM PR 40962. Lossless: the token in the place of a refused one is drawn in the next round, under the mask, and

    p(x) [x allowed] + P(refused) p(x) [x allowed] / P(allowed)  =  p(x) [x allowed] / P(allowed)

which needs that p is cut by nothing else: top-k, top-p and min-p choose from all tokens before a refusal and from the
allowed ones after it.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.config.constraint import GrammarConfig
from kernels.methods import Guarantee


@dataclass(frozen=True)
class Commit(GrammarConfig):
    """Cuts what was emitted."""

    guarantees = Guarantee.lossless, Guarantee.lossy
    cuts_boundary_round = True
