"""The settings of the benchmark of reasoning parsers. Needs neither Hydra nor torch."""

from __future__ import annotations

from dataclasses import dataclass

from harness.config.schema import check_setting


@dataclass(frozen=True)
class ReasoningCostConfig:
    """What is timed, and where the table goes."""

    contexts: tuple[float, ...] = (1_000, 4_000, 16_000, 64_000, 128_000)
    """Tokens of the sequence before the rounds that are timed."""
    draft_tokens: int = 4
    """K, draft tokens of a round."""
    rounds: int = 2_000
    """Rounds that are timed at each context; the median is reported."""
    output: str = "results/runs/bench_reasoning"
    """Folder for bench_reasoning.md and bench_reasoning.json."""

    def __post_init__(self) -> None:
        lengths = list(self.contexts)
        whole = bool(lengths) and all(length >= 0 and length == int(length) for length in lengths)
        check_setting(whole, "contexts", "whole numbers of tokens", lengths)
        check_setting(self.draft_tokens >= 0, "draft_tokens", "0 or more", self.draft_tokens)
        check_setting(self.rounds >= 1, "rounds", "1 or more", self.rounds)
        check_setting(bool(self.output), "output", "a folder", "nothing")
