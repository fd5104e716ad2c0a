"""A policy of a user's own, outside of the package."""

from collections.abc import Sequence
from dataclasses import dataclass

from harness.config.constraint import GrammarConfig
from harness.engine.constraint.matcher import Matcher


@dataclass(frozen=True)
class Switched(GrammarConfig):
    """As `commit`, or without its cut."""

    cuts_boundary_round = True
    cuts: bool = True
    """Whether it cuts."""

    def take_answer(self, matcher: Matcher, answer_ids: Sequence[int]) -> int:
        return super().take_answer(matcher, answer_ids) if self.cuts else len(answer_ids)
