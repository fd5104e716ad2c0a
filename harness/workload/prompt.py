"""One prompt: what a data set gives, before it becomes a request. Knows neither files nor tokenizers."""

from __future__ import annotations

from dataclasses import dataclass

from harness.config.sampling import GivenSampling


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

    def __post_init__(self) -> None:
        if not self.turns or not all(turn.strip() for turn in self.turns):
            raise ValueError(f"prompt {self.prompt_id}: expected one or more turns with text, found {self.turns!r}")
