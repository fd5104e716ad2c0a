"""Strict verification, lossless: accept X_i iff it equals y_i ~ p_i; at the first mismatch emit y_i.

Computed as probabilistic verification that takes every proposal as one-hot, which has the same law: accept X_i with
probability p_i(X_i), else emit from p_i without X_i.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .probabilistic import Probabilistic
from .rule import Look, RecordedTerms
from .traits import Guarantee, MethodTraits


@dataclass(frozen=True)
class Strict(Probabilistic):
    traits = MethodTraits(Guarantee.lossless, is_strict_on_one_hot=True, expected_is_recorded=True)
    look = Look("#0072B2", "o", "-")
    mass = "strict_mass"

    def recorded_odds(self, terms: RecordedTerms) -> tuple[Any, Any] | None:
        return terms.target_prob, 1.0
