"""A verification method with its parameters, and what these may be; this module does not know torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import accumulate, pairwise

from .methods import Guarantee, Method, MethodTraits

ROUNDING = 1e-9
"""Slack for sums of rates."""


@dataclass(frozen=True)
class Verification:
    """A verification method with its parameters; a parameter that the method does not use is ignored by it."""

    method: Method
    epsilon: float = 0.09
    """typical: upper bound of the acceptance threshold on the target probability."""
    delta: float = 0.3
    """typical: factor of exp(-entropy) in the threshold; entropy in nats."""
    leniency: float = 1.0
    """lenient: l in (0, 1]; 1 is probabilistic."""
    synthetic_rates: tuple[float, ...] = ()
    """synthetic: unconditional acceptance rate of each position of a chain, not increasing."""
    synthetic_tree_rates: tuple[tuple[float, ...], ...] = ()
    """synthetic: of a tree, for each depth the rates of a node's first child, second child and so on, given that the
    walk has reached the node; 0 at depths and children beyond. They exclude each other, so their sum is at most 1."""
    fly_window_size: int = 6
    """fly: draft tokens behind a rejected one that must pass by themselves, 1 or more."""
    fly_entropy_threshold: float = 0.3
    """fly: least entropy at which a draft token may be deferred, in nats."""
    fly_entropy_top_k: int = 3
    """fly: most likely tokens that the entropy is summed over."""

    def __post_init__(self) -> None:
        if not 0 < self.epsilon <= 1:
            raise ValueError(f"epsilon must lie in (0, 1], found {self.epsilon}")
        if not 0 < self.delta < math.inf:
            raise ValueError(f"delta must be positive and finite, found {self.delta}")
        if not 0 < self.leniency <= 1:
            raise ValueError(f"leniency must lie in (0, 1], found {self.leniency}")
        rates = self.synthetic_rates
        if any(not 0 <= rate <= 1 for rate in rates) or any(a < b for a, b in pairwise(rates)):
            raise ValueError(f"synthetic_rates must lie in [0, 1] and not increase, found {list(rates)}")
        for level in self.synthetic_tree_rates:
            if any(not 0 <= rate <= 1 for rate in level) or not level or sum(level) > 1 + ROUNDING:
                raise ValueError(
                    "synthetic_tree_rates must be, for each depth, rates in [0, 1] of a node's children whose sum is "
                    f"at most 1, found {list(level)}"
                )
        if self.fly_window_size < 1:
            raise ValueError(f"fly_window_size must be 1 or more, found {self.fly_window_size}")
        if not 0 <= self.fly_entropy_threshold < math.inf:
            raise ValueError(f"fly_entropy_threshold must be 0 or more and finite, found {self.fly_entropy_threshold}")
        if self.fly_entropy_top_k < 1:
            raise ValueError(f"fly_entropy_top_k must be 1 or more, found {self.fly_entropy_top_k}")

    @property
    def tree_thresholds(self) -> list[list[float]]:
        """`synthetic_tree_rates` summed up over the children of a node, one row for each depth; a row with fewer
        children than another repeats its last sum."""
        width = max(map(len, self.synthetic_tree_rates), default=0)
        return [list(accumulate((*level, *(0.0,) * (width - len(level))))) for level in self.synthetic_tree_rates]

    @property
    def traits(self) -> MethodTraits:
        return self.method.traits

    @property
    def guarantee(self) -> Guarantee:
        return self.traits.guarantee
