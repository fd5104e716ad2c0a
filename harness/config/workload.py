"""The settings of the section `workload`: which prompts a run plays, how often, and when they arrive."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum

from harness.config.models import require


class Layout(Enum):
    """Layout of a prompt file."""

    auto = "auto"
    mt_bench = "mt_bench"
    spec_bench = "spec_bench"
    gsm8k = "gsm8k"
    humaneval = "humaneval"
    json_schemas = "json_schemas"
    plain = "plain"


class TooLong(Enum):
    """What happens to a prompt that does not fit."""

    skip = "skip"
    error = "error"


@dataclass
class WorkloadConfig:
    """The prompts: which, how many, in which order, when they arrive."""

    path: str | None = None
    """JSON Lines file (also .gz), or builtin:NAME for one of the package; null without a dataset is the built-in set of
    80 prompts."""
    layout: Layout = Layout.auto
    """Layout of the file; auto looks at the first record."""
    dataset: str | None = None
    """Hugging Face data set id."""
    subset: str | None = None
    """Configuration name of the data set."""
    split: str = "test"
    """Split of the data set."""
    column: str = "prompt"
    """Column of the data set that holds the prompt: text, or a list of texts (turns)."""
    files: str | None = None
    """Pattern of the data set's JSON Lines files to read instead of a split, such as *.jsonl; the name of each is the
    category of its prompts."""
    categories: list[str] = field(default_factory=list)
    """Keep only these categories; empty keeps all."""
    num_prompts: int | None = None
    """Take this many prompts, evenly over the categories, chosen by the seed; null takes all."""
    num_requests: int | None = None
    """Oversample the prompts, in order, to this many conversations; null runs each prompt once."""
    num_turns: int | None = None
    """Turns of a prompt that run, each after the model's answer to the one before; null takes all."""
    thinking: bool | None = None
    """Whether chat templates with such a switch (enable_thinking, thinking) ask for reasoning; null is what a template
    does by itself."""
    prompt_tokens: int | None = None
    """Cut or repeat every prompt to exactly so many tokens, for speed at fixed sizes; null leaves them as they are."""
    request_rate: float | None = None
    """Conversations that arrive per second, at random (a Poisson process); null: all wait for a slot from the start."""
    shuffle: bool = True
    """Deterministic order drawn from the seed; false keeps the file's order."""
    too_long: TooLong = TooLong.skip
    """A prompt that does not fit beside max_new_tokens: leave it out (counted in the record) or stop."""

    def __post_init__(self) -> None:
        require(self.path != "", "workload.path", "a JSON Lines file (workload.path=FILE)", "nothing")
        require(self.path is None or self.dataset is None, "workload", "path or dataset, not both", "both")
        require(
            self.request_rate is None or 0 < self.request_rate < math.inf,
            "workload.request_rate",
            "more than 0 conversations per second, or null",
            self.request_rate,
        )
        for name in ("num_prompts", "num_requests", "num_turns", "prompt_tokens"):
            value = getattr(self, name)
            require(value is None or value >= 1, f"workload.{name}", "1 or more, or null", value)
        require(
            self.prompt_tokens is None or self.num_turns == 1,
            "workload.prompt_tokens",
            "workload.num_turns=1 beside it (a later turn holds the model's answer, which has no set length)",
            f"num_turns={'null' if self.num_turns is None else self.num_turns}",
        )
