"""What a run leaves behind: rounds, requests, cells. The seam between the engine and everything that reads results.

Left of the records a GPU may be needed; right of them a laptop without torch is enough. A record cannot be built
inconsistent. Definitions of the counts: harness.metrics.columns. This module does not know models, torch or Hydra.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from kernels.methods import METHODS

SCHEMA_VERSION = 2
"""2: the provenance names the sampling core, and draft_logit_cache_bytes counts the statistics of its rows."""


class CutReason(Enum):
    """Why tokens that verification had emitted were cut off the end of a round."""

    eos = "eos"
    length = "length"
    grammar = "grammar"


class FinishReason(Enum):
    """Why a request ended."""

    eos = "eos"
    length = "length"
    grammar = "grammar"
    """The answer is whole, and its grammar lets nothing follow."""


class InconsistentRecordError(ValueError):
    """A record that contradicts itself."""


ROUNDING = 1e-6
"""Slack for expected counts, which are sums of float64 probabilities."""


EXPECTED_METHODS = tuple(method.value for method in METHODS if method.traits.expected_is_recorded)
"""strict, probabilistic and block, in this order."""


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """One round of one request. The draw that ends the prefill is a round without draft tokens."""

    num_proposed_tokens: int
    """Draft tokens the drafter produced for this round."""
    num_draft_tokens: int
    """K_r: draft tokens that count as evidence, known before verification; not those behind the length limit, nor the
    first drafted EOS and what follows it, whether or not they were examined."""
    num_accepted_tokens: int
    """A_r: accepted draft tokens among them."""
    num_output_tokens: int
    """Tokens that this round added to the output."""
    cut_reason: CutReason | None
    arrival_s: float
    """When the tokens reached the host, in seconds since the measured phase of the cell began."""
    share_s: float
    """The duration of the engine step, divided by the number of requests that took part in it."""
    expected_accepted: tuple[float, float, float] | None = None
    """Expected accepted tokens given this round's drafts under strict, probabilistic and block (EXPECTED_METHODS); None
    unless the whole draft is evidence."""
    num_free_tokens: int | None = None
    """Draft tokens up to the end of reasoning, the marker included: all of them before it, 0 behind it; None where no
    end of reasoning is looked for."""
    num_cut_tokens: int = 0
    """Emitted tokens that were cut off again, for whatever reason."""
    host_us: float = 0.0
    """Microseconds that the host spent on the constraint."""
    is_whole: bool | None = None
    """Whether its step ran as one piece, as without a constraint; False: the host took part in it. None where nothing
    is held to a grammar."""
    num_held_steps: int = 0
    """Steps in front of it that held the request back and decided nothing, because reasoning may have ended in them."""

    def __post_init__(self) -> None:
        # The messages are built only on failure: a run holds millions of rounds.
        accepted, drafted, proposed = self.num_accepted_tokens, self.num_draft_tokens, self.num_proposed_tokens
        if not 0 <= accepted <= drafted <= proposed:
            raise InconsistentRecordError(
                f"expected 0 <= accepted <= drafted <= proposed, found {accepted}, {drafted}, {proposed}"
            )
        # where a grammar cuts, the last token that is kept may be an accepted draft token
        needed = accepted + (self.cut_reason is not CutReason.grammar)
        if accepted and needed > self.num_output_tokens:
            raise InconsistentRecordError(
                f"{accepted} accepted tokens need {needed} output tokens, found {self.num_output_tokens}"
            )
        if self.cut_reason is None and self.num_output_tokens != accepted + 1:
            raise InconsistentRecordError(
                f"a round without a cut emits accepted + 1 = {accepted + 1} tokens, found {self.num_output_tokens}"
            )
        if not (math.isfinite(self.arrival_s) and 0 <= self.share_s < math.inf):
            raise InconsistentRecordError(
                f"expected finite times and share_s >= 0, found arrival_s = {self.arrival_s}, share_s = {self.share_s}"
            )
        expected, most = self.expected_accepted, proposed + ROUNDING
        if expected is not None and not (
            len(expected) == len(EXPECTED_METHODS)
            and -ROUNDING <= expected[0] <= most
            and -ROUNDING <= expected[1] <= most
            and -ROUNDING <= expected[2] <= most
        ):
            raise InconsistentRecordError(
                f"expected_accepted: expected {len(EXPECTED_METHODS)} values in [0, {proposed}], found {expected}"
            )
        if self.num_free_tokens is not None and not 0 <= self.num_free_tokens <= proposed:
            raise InconsistentRecordError(
                f"num_free_tokens: expected 0 to {proposed}, the proposed tokens, found {self.num_free_tokens}"
            )
        if self.num_held_steps and (self.num_held_steps < 0 or self.is_whole is not False):
            raise InconsistentRecordError(
                "num_held_steps: expected 0 or more, and none but in front of a round in which the host took part, "
                f"found {self.num_held_steps} with is_whole = {self.is_whole}"
            )
        if self.num_cut_tokens < 0 or (self.num_cut_tokens > 0 and self.cut_reason is None):
            raise InconsistentRecordError(
                f"num_cut_tokens: expected 0 or more, and none without a cut_reason, found {self.num_cut_tokens}"
            )


ENDING_CUTS = (CutReason.eos, CutReason.length)
"""Cuts after which a request emits nothing more."""


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request: one turn of one prompt, answered once."""

    prompt_id: str
    """The unit of resampling: every turn and every copy of a prompt carries the same id."""
    category: str
    turn: int
    sample: int
    """Copy of the prompt, 0 unless oversampled."""
    seed: int
    num_prompt_tokens: int
    output_token_ids: tuple[int, ...]
    finish_reason: FinishReason
    submitted_s: float
    """When the request was admitted to a slot, in seconds since the measured phase of the cell began."""
    rounds: tuple[RoundRecord, ...]
    num_reasoning_tokens: int | None = None
    """Output tokens up to the end of reasoning, the marker included; None where it did not end or is not looked for."""
    answer_is_valid: bool | None = None
    """What a validator that is not the grammar's library says of the answer; None where there is none to judge."""

    @property
    def key(self) -> tuple[str, int, int]:
        """What tells the requests of a cell apart: prompt, turn, copy."""
        return self.prompt_id, self.turn, self.sample

    def __post_init__(self) -> None:
        if not self.rounds:
            raise InconsistentRecordError(f"request {self.key}: has no rounds, expected at least the prefill's")
        num_emitted = sum(item.num_output_tokens for item in self.rounds)
        if num_emitted != len(self.output_token_ids):
            raise InconsistentRecordError(
                f"request {self.key}: rounds emitted {num_emitted} tokens, the output has {len(self.output_token_ids)}"
            )
        num_reasoning = self.num_reasoning_tokens
        if num_reasoning is not None and not 0 <= num_reasoning <= num_emitted:
            raise InconsistentRecordError(
                f"request {self.key}: expected 0 to {num_emitted} reasoning tokens, found {num_reasoning}"
            )
        last = self.submitted_s
        for item in self.rounds:
            if not item.arrival_s >= last:
                raise InconsistentRecordError(
                    f"request {self.key}: arrivals must not go back in time, found {item.arrival_s} after {last}"
                )
            last = item.arrival_s
        if any(item.cut_reason in ENDING_CUTS for item in self.rounds[:-1]):
            raise InconsistentRecordError(f"request {self.key}: a round cut by eos or length must be the last one")


COUNTS_OF_A_CELL = (
    "draft_logit_cache_bytes",
    "target_cache_bytes",
    "drafter_cache_bytes",
    "graph_bytes",
    "num_target_parameters",
    "num_drafter_parameters",
    "num_skipped_turns",
)


@dataclass(frozen=True, slots=True)
class CellRecord:
    """One cell of a sweep: one complete configuration and what it produced."""

    cell_id: str
    config: Mapping[str, Any]
    """The resolved configuration as plain values, with `draft_sampling`, `guarantee`, `device`, `dtype` resolved."""
    provenance: Mapping[str, Any]
    requests: tuple[RequestRecord, ...]
    wall_s: float
    """Duration of the measured phase: the sum over the cell's blocks."""
    draft_logit_cache_bytes: int
    num_target_parameters: int
    num_drafter_parameters: int
    target_cache_bytes: int = 0
    """Key-value cache of the target; 0 in records written before it was counted."""
    drafter_cache_bytes: int = 0
    """Key-value cache of the drafter; 0 for a drafter without one, and in records written before it was counted."""
    graph_bytes: int = 0
    """Memory of the steps that were captured as CUDA graphs; 0 without them, and in records written before it was
    counted."""
    num_skipped_turns: int = 0
    """Turns left out because they did not fit."""
    fallbacks: tuple[str, ...] = ()
    """Everything that changed speed or results without being asked for."""
    labels: tuple[str, ...] = ()
    """Printed with every number of the cell: lossy, biased, synthetic, weights: random."""
    schema_version: int = field(default=SCHEMA_VERSION)

    def __post_init__(self) -> None:
        if self.schema_version != SCHEMA_VERSION:
            raise InconsistentRecordError(
                f"record has schema {self.schema_version}, this version reads {SCHEMA_VERSION}; run the cell again"
            )
        if not (0 <= self.wall_s < math.inf) or (self.wall_s == 0 and self.requests):
            raise InconsistentRecordError(f"a cell with requests took time, found wall_s = {self.wall_s}")
        for name in COUNTS_OF_A_CELL:
            if getattr(self, name) < 0:
                raise InconsistentRecordError(f"{name}: expected 0 or more, found {getattr(self, name)}")
        keys = [item.key for item in self.requests]
        if len(set(keys)) != len(keys):
            twice = next(key for key in keys if keys.count(key) > 1)
            raise InconsistentRecordError(f"request (prompt, turn, sample) = {twice} is recorded twice")
