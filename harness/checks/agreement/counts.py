"""What a comparison of two cores counts.

A decision is an accept decision that the rule took, or a token that was drawn. Chain rules take one decision for every
draft token up to the first that is rejected; block those about the last accepted token and all after it; coupled and
greedy verification none but their tokens, one for each position they reached.

Float32 arithmetic may move a probability, and with it the boundary of a decision. A core computes weights exp(a) with
a = (logit - maximum) / T in float32 and sums them in float64. Relative to itself

    a         is rounded at most four times (difference, 1 / T, product, base 2):     4 * 2^-24 = 2^-22
    exp(a)    is within 2 ulp of the exponential of what it was given:                2 * 2^-23 = 2^-22

so the logarithm of the probability of x, a(x) - log sum exp(a), is off by at most

    2^-22 * (|a(x)| + E|a|) + 2 * 2^-22

where E|a| is taken under the row's own law: its entropy less the logarithm of the sum, which is not negative, and so
at most log V = 12.5 for the largest vocabulary. Tokens further than 25 nats below the largest logit are never decided
about in practice: one so far down is drawn once in 10^10 times. 2^-22 * (25 + 12.5 + 2) is below 1e-5.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kernels.methods import Method

ROUNDING = 1e-5
"""Relative error of one probability that float32 arithmetic explains."""
SCORE_ROUNDING = 1e-9
"""Gap between two scores of coupled noise that is explained: both cores work them out in float64, logit / T within some
1e-14 and the noise, a double logarithm, within some 1e-15. Only what top-p and min-p keep may depend on float32."""


def tolerance_of(method: Method) -> float:
    """The largest margin that rounding explains in what a method draws or decides."""
    return SCORE_ROUNDING if method.traits.compares_draws else ROUNDING


@dataclass(frozen=True)
class Disagreement:
    """One request, or one row of a draw, for which two cores found different things."""

    what: str
    """verify, draw, coupled_draw or draw_children."""
    is_accept_decision: bool
    """Whether an accept decision went the other way; else only the token that was drawn differs."""
    found: tuple[int, ...]
    """Output tokens of the core under test; one for a draw, the children of one node."""
    expected: tuple[int, ...]
    """Output tokens of the reference."""
    margin: float
    """How far float64 is from having found the same, in units of the relative error of one probability; infinity when
    no rounding explains it."""
    tolerance: float = ROUNDING
    """The largest margin that rounding explains here."""

    @property
    def explained(self) -> bool:
        return self.margin <= self.tolerance


@dataclass(frozen=True)
class Agreement:
    """Decisions on which two cores were compared."""

    num_accept_decisions: int = 0
    num_tokens: int = 0
    disagreements: tuple[Disagreement, ...] = ()

    def __post_init__(self) -> None:
        if len(self.disagreements) > self.num_decisions:
            raise ValueError(
                f"expected at most one disagreement a decision, found {len(self.disagreements)} in {self.num_decisions}"
            )

    @property
    def num_decisions(self) -> int:
        return self.num_accept_decisions + self.num_tokens

    @property
    def num_disagreements(self) -> int:
        return len(self.disagreements)

    @property
    def num_accept_disagreements(self) -> int:
        return sum(each.is_accept_decision for each in self.disagreements)

    @property
    def num_token_disagreements(self) -> int:
        return self.num_disagreements - self.num_accept_disagreements

    @property
    def num_unexplained(self) -> int:
        return sum(not each.explained for each in self.disagreements)

    @property
    def largest_margin(self) -> float:
        """Of the disagreements; 0 if there is none."""
        return max((each.margin for each in self.disagreements), default=0.0)


def total(parts: Iterable[Agreement]) -> Agreement:
    """All decisions together."""
    parts = list(parts)
    return Agreement(
        sum(part.num_accept_decisions for part in parts),
        sum(part.num_tokens for part in parts),
        tuple(each for part in parts for each in part.disagreements),
    )
