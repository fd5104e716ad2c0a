"""One prompt: what a data set gives, before it becomes a request. Knows neither files nor tokenizers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from harness.config.sampling import GivenSampling


class KnownAnswer(NamedTuple):
    """What tells whether an answer is right; no request depends on it."""

    task: str
    """One of harness.workload.tasks."""
    given: str
    """What its module needs beside the answer."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """The user's side of a conversation."""

    prompt_id: str
    """Unique in its data set; the unit that the bootstrap resamples."""
    category: str
    """Group that tables can be split by."""
    turns: tuple[str, ...]
    """What the user says, turn after turn; the answers between them are the model's own."""
    schema: str | None = None
    """JSON schema of the answers, as text; None where there is none."""
    sampling: GivenSampling | None = None
    """Sampling parameters of its requests; None takes the cell's."""
    opening: str | None = None
    """Messages in front of the first turn, as JSON: a system message, a greeting; None where there are none."""
    histories: tuple[str, ...] = ()
    """Of each turn the messages up to it, as JSON, where the answers between turns are given; else empty."""
    tools: str | None = None
    """What the chat template is told of tools, as JSON; None where there are none."""
    stop: tuple[str, ...] | None = None
    """Stop strings of its answers; None takes the cell's."""
    known: KnownAnswer | None = None
    """Of its first turn; None where nothing is known."""

    @property
    def num_generated_between(self) -> int:
        """Answers of the model that its last turn reads."""
        return 0 if self.histories else len(self.turns) - 1

    def cut(self, num_turns: int | None) -> Prompt:
        """Its first turns; None is all."""
        return replace(self, turns=self.turns[:num_turns], histories=self.histories[:num_turns])

    def __post_init__(self) -> None:
        if not self.turns or not all(turn.strip() for turn in self.turns):
            raise ValueError(f"prompt {self.prompt_id}: expected one or more turns with text, found {self.turns!r}")
