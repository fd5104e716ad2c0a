"""What a comparison of two cores counts.

A decision is an accept decision that the rule took, or a token that was drawn. Chain rules take one decision for every
draft token up to the first that is rejected; block those about the last accepted token and all behind it; coupled and
greedy verification none but their tokens, one for each position they reached.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from harness.agreement.rounding import ROUNDING


@dataclass(frozen=True)
class Disagreement:
    """One request, or one row of a draw, for which two cores found different things."""

    what: str
    """verify, draw or coupled_draw."""
    is_accept_decision: bool
    """Whether an accept decision went the other way; else only the token that was drawn differs."""
    found: tuple[int, ...]
    """Output tokens of the core under test; one for a draw."""
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
