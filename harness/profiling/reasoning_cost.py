"""Times the rounds of a constrained request behind contexts of different lengths."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from torch import Tensor

from harness.constraint.grammar_state import GrammarState
from harness.constraint.masks import Masks
from harness.constraint.parsers.parser import ReasoningParser
from harness.constraint.policies import POLICIES
from harness.profiling.reasoning_config import ReasoningCostConfig
from harness.profiling.reasoning_parsers import CONTROL, FIRST_OTHER, PARSERS
from harness.settings.constraint import PolicyKind

NUM_IDS = 1000
"""Ids that the context is made of."""
CHUNK = 64
"""Tokens that the context is read in at a time."""


class RoundCost(NamedTuple):
    """One parser at one context."""

    parser: str
    context: int
    median_us: float


class _NoAnswer:
    """A grammar that is never asked, since reasoning does not end."""

    is_complete = False

    def accept(self, token_ids: Sequence[int]) -> int:
        raise AssertionError("reasoning does not end")

    def rollback(self, num_tokens: int) -> None:
        raise AssertionError("reasoning does not end")

    def fill(self, words: Tensor) -> None:
        raise AssertionError("reasoning does not end")


def measure(config: ReasoningCostConfig) -> list[RoundCost]:
    """Time every kind of parser at every context."""
    return [
        RoundCost(name, int(context), _median_us(parser, int(context), config, _num_rounds(name, config)))
        for name, parser in PARSERS.items()
        for context in config.contexts
    ]


def tokens(start: int, count: int) -> list[int]:
    """Tokens of a text without a marker: the same for every parser."""
    return [FIRST_OTHER + place % NUM_IDS for place in range(start, start + count)]


def _num_rounds(name: str, config: ReasoningCostConfig) -> int:
    """A control that keeps the history takes milliseconds a round."""
    return min(config.rounds, 50) if name == CONTROL else config.rounds


def _median_us(parser: ReasoningParser, context: int, config: ReasoningCostConfig, num_rounds: int) -> float:
    grammar_state = GrammarState(parser, _NoAnswer(), POLICIES[PolicyKind.mask])
    masks = Masks(1, NUM_IDS)
    for start in range(0, context, CHUNK):
        grammar_state.after_verification(tokens(start, min(CHUNK, context - start)))
    times = []
    for number in range(num_rounds):
        drafted = tokens(context + number, config.draft_tokens)
        grammar_state.before_verification(drafted, masks)
        times.append(grammar_state.after_verification(tokens(context + number, config.draft_tokens + 1)).host_us)
    return median(times)
