"""What a rule for trees is given, and what it returns.

A rule asks `passes` about draft tokens, each at most once, and walks from the context to the node that is accepted
last. Certification and the engine answer with uniform numbers; an enumeration goes through all answers.

Shapes: R requests, V the target's vocabulary, n draft tokens asked about at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

Passes = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""(requests, draft tokens 0 .. K - 1, numerators, denominators; [n] int64 or float64) -> [n] bool: each passes with
probability min(1, numerator / denominator), independently of the others."""


class Walked(NamedTuple):
    """Where the rule stopped."""

    nodes: Tensor
    """[R] int64, the last accepted node; 0 is the context."""
    weights: Tensor
    """[R, V] float64, unnormalised law of the token that follows; each row has a positive sum."""
