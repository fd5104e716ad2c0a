"""What goes into the engine, where it ends, and what a follow-up turn needs of it; knows no slots and no steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from harness.config.sampling import SamplingSettings
from harness.engine.constraint.grammar_state import GrammarState
from harness.engine.constraint.parsers.parser import ReasoningParser
from harness.engine.stop_strings import StopStrings
from harness.records.request import StopFound


@dataclass(frozen=True)
class Request:
    """One turn of one prompt, as token ids."""

    prompt_id: str
    category: str
    turn: int
    sample: int
    seed: int
    token_ids: tuple[int, ...]
    arrival_s: float | None = None
    """When it arrives, on the engine's clock; None: at the start, and it counts as submitted when a slot takes it."""
    grammar_state: GrammarState | None = None
    """Constrains its answer by a grammar; every request has its own."""
    sampling: SamplingSettings | None = None
    """Its own sampling parameters; None takes the engine's."""
    parser: ReasoningParser | None = None
    """Finds the end of reasoning when it has ended, where no grammar state does; None if not requested."""
    stops: StopStrings | None = None
    """End its answer; None without any."""

    def __post_init__(self) -> None:
        if not self.token_ids:
            raise ValueError(f"prompt {self.prompt_id}: expected at least one prompt token, found none")


@dataclass(frozen=True)
class Limits:
    """Where a request ends."""

    max_new_tokens: int
    eos_token_ids: frozenset[int]
    """Empty to go on past the end of sequence."""


class Answer(NamedTuple):
    """What the next turn of a conversation needs of a request that has ended."""

    prompt_id: str
    turn: int
    sample: int
    seed: int
    output_token_ids: list[int]
    is_invalid: bool
    """Some round met a row without a distribution, or a draft token its distribution cannot have produced."""
    stop: StopFound | None = None
    """The stop string with which it ended."""
