"""The typed settings of a cell that have no file of their own: decoding, measurement.

Every field says what it means and in which unit; what one section allows is checked in its dataclass. This module does
not know which sections fit together.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any

from harness.config.models import require
from harness.config.sampling import AS_TEXT, SamplingSettings

MAX_LOGPROBS = 20
"""Alternatives of an output token that a record may hold; as many as the common servers give."""


class LogprobsMode(Enum):
    """Which distribution recorded log-probabilities are of."""

    raw = "raw"
    processed = "processed"


@dataclass
class DecodingConfig:
    """The distribution of the output, and where it ends."""

    temperature: float = 1.0
    """0 is greedy decoding."""
    top_k: int = 0
    """0 is off."""
    top_p: float = 1.0
    """1 is off."""
    min_p: float = 0.0
    """0 is off."""
    repetition_penalty: float = 1.0
    """Divide the logit of a token that stands in the prompt or the output so far by this, or multiply it where it is
    negative; 1 is off. Like the four settings below it applies before temperature and truncation, in vLLM's order, at
    each position along a draft with the draft tokens before it. Drafters propose without any of them: the output's law
    is the target's with them, and strong ones lower acceptance."""
    presence_penalty: float = 0.0
    """Taken from the logit of a token that stands in the output so far; 0 is off."""
    frequency_penalty: float = 0.0
    """Taken from the logit of a token for each time that it stands in the output so far; 0 is off."""
    min_tokens: int = 0
    """Output tokens before an end of sequence, or the end of a stop string, may come."""
    logit_bias: str | None = None
    """Added to the logits of tokens, by id: 11:-100/5:2.5, in quotation marks in a file of YAML; null is off."""
    max_new_tokens: int = 64
    """Output tokens of a request at most."""
    ignore_eos: bool = False
    """Go on past the end-of-sequence token; recorded, because it inflates acceptance."""
    # Any, since OmegaConf would make text of what YAML takes for a number or a switch
    stop: list[Any] = field(default_factory=list)
    """Strings that end an answer, wherever tokens begin and end; its text ends before them. A line break is one in the
    string: in bash $'decoding.stop=["\\n\\n"]', in a file of YAML "\\n\\n"."""
    logprobs: int | None = None
    """Record the log-probability of every output token and of so many best tokens beside it; null records none."""
    logprobs_mode: LogprobsMode = LogprobsMode.raw
    """Of the target's logits as they are, or of the distribution that tokens are drawn from."""

    def __post_init__(self) -> None:
        self.sampling.check("decoding")
        require(self.max_new_tokens >= 1, "decoding.max_new_tokens", "1 or more", self.max_new_tokens)
        check_stop("decoding.stop", self.stop)
        as_typed = "no string of backslash and n: give the line break itself, in bash $'decoding.stop=[\"\\n\"]'"
        is_typed = any(re.fullmatch(r"(\\[nrt])+", each) for each in self.stop)
        require(not is_typed, "decoding.stop", as_typed, self.stop)
        fits = self.min_tokens <= self.max_new_tokens
        require(fits, "decoding.min_tokens", f"at most decoding.max_new_tokens={self.max_new_tokens}", self.min_tokens)
        fits = self.logprobs is None or 0 <= self.logprobs <= MAX_LOGPROBS
        require(fits, "decoding.logprobs", f"0 to {MAX_LOGPROBS}, or null", self.logprobs)

    @property
    def sampling(self) -> SamplingSettings:
        """What tokens are drawn from, of requests without parameters of their own."""
        return SamplingSettings(**{item.name: getattr(self, item.name) for item in fields(SamplingSettings)})


def check_stop(key: str, strings: list[str]) -> None:
    """Raises ValueError, which calls them `key`, for stop strings that can end no answer, or stand there twice."""
    for each in strings:
        require(isinstance(each, str), key, AS_TEXT, repr(each))
    require(all(strings), key, "strings of one character or more", strings)
    require(len({*strings}) == len(strings), key, "each string once", strings)
    # what a tokenizer spells for bytes that are no character, and what Python takes in for them
    found = [ascii(each) for each in strings]
    are_characters = not any(re.search("[\ufffd\ud800-\udfff]", each) for each in strings)
    require(are_characters, key, "strings of whole characters, without U+FFFD", found)


GOODPUT_LIMITS = ("max_ttft_ms", "max_tpot_ms", "max_e2e_ms")
"""Settings of the section measurement that a good request keeps."""


@dataclass
class MeasurementConfig:
    """How the cells of a run are measured and summarised; one for the whole run."""

    baseline: bool = True
    """Run the autoregressive baseline beside each target and decoding setting."""
    num_warmup_requests: int = 4
    """Requests that run before the first measured one of each cell, and are discarded."""
    num_blocks: int = 2
    """Blocks of requests; the cells take turns block by block, in alternating order (A B, then B A)."""
    expected_acceptance: bool = True
    """Record, per round, the acceptance that each chain method expects on the same drafts."""
    round_terms: bool = False
    """Also record, per draft position, the probabilities that `rejection-lab replay` needs."""
    multi_draft_terms: bool = False
    """With them also record what 1 to 8 drafts a position would be worth there, for sampled drafts of a model. It is
    computed beside the clock; on a CPU that can take several times as long as what is measured."""
    run_code: bool = False
    """Run the code in answers to prompts that have tests (HumanEval), to count those that pass: in a process with
    limits of time and memory, without a network where the system allows it. It guards against accidents alone: code of
    a model that may be hostile belongs into a container."""
    num_resamples: int = 2000
    """Bootstrap resamples of the prompts."""
    confidence: float = 0.95
    """Level of the intervals."""
    max_ttft_ms: float | None = None
    """Goodput: longest time to the first token of a good request; null sets no limit."""
    max_tpot_ms: float | None = None
    """Goodput: longest time per further output token of a good request; null sets no limit."""
    max_e2e_ms: float | None = None
    """Goodput: longest duration of a good request; null sets no limit."""

    def __post_init__(self) -> None:
        require(self.num_warmup_requests >= 0, "measurement.num_warmup_requests", "0 or more", self.num_warmup_requests)
        require(self.num_blocks >= 1, "measurement.num_blocks", "1 or more", self.num_blocks)
        require(self.num_resamples >= 100, "measurement.num_resamples", "100 or more", self.num_resamples)
        require(0.5 <= self.confidence < 1, "measurement.confidence", "a level in [0.5, 1)", self.confidence)
        for name in GOODPUT_LIMITS:
            value = getattr(self, name)
            require(value is None or value > 0, f"measurement.{name}", "more than 0, or null", value)
        require(
            self.expected_acceptance or not self.round_terms,
            "measurement.round_terms",
            "false without measurement.expected_acceptance=true, with which it is measured",
            self.round_terms,
        )
        require(
            self.round_terms or not self.multi_draft_terms,
            "measurement.multi_draft_terms",
            "false without measurement.round_terms=true, beside which it is recorded",
            self.multi_draft_terms,
        )
