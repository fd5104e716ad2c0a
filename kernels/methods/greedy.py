"""Greedy verification, lossless: the limit of every lossless rule at temperature 0, where alone it is defined.

    accept X_i iff X_i = argmax p_i, the lowest id among equals; else emit argmax p_i

At temperature 0 strict verification is this rule. Above, the kernels accept nothing and flag the request, and the
reference core raises a ValueError.
"""

from __future__ import annotations

from dataclasses import dataclass

from .rule import Look
from .strict import Strict
from .traits import DraftSampling, Guarantee, MethodTraits


@dataclass(frozen=True)
class Greedy(Strict):
    traits = MethodTraits(
        Guarantee.lossless,
        draft_samplings=(DraftSampling.greedy, DraftSampling.sampled, DraftSampling.coupled),
        greedy_only=True,
        is_strict_on_one_hot=True,
    )
    look = Look("#56B4E9", "X", ":")
