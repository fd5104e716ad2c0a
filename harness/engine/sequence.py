"""A request in a slot: its tokens, the steps launched for it, and its rounds; knows no other request."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from harness.engine.commit import commit, is_left_whole, stays_whole
from harness.engine.constraint.grammar_state import ConstraintOutcome
from harness.engine.request import Answer, Limits, Request
from harness.engine.rounds import (
    Round,
    RoundFields,
    RowLayout,
    WholeRound,
    committed_fields,
    constrained_fields,
    fields_of,
)
from harness.records.acceptance_terms import Floats
from harness.records.request import FinishReason, StopFound


class MeasuredDraft(NamedTuple):
    """What was measured on the draft of one round."""

    expected_accepted: tuple[float, float, float] | None
    """Of the chain methods, given these drafts; None for trees."""
    position_bounds: tuple[float, ...] | None
    """Of each draft token; None where one is not known."""
    terms: Mapping[str, Floats] | None
    """Of the draft, if they are recorded."""


@dataclass
class Sequence:
    """A request that occupies a slot."""

    request: Request
    slot: int
    submitted_s: float
    min_tokens: int = 0
    """Output tokens before which none can end it, unless its request has sampling of its own, which says it then."""
    token_ids: list[int] = field(init=False)
    """Of the prompt, then the output so far."""
    num_prompt_tokens: int = field(init=False)
    num_prefilled_tokens: int = 0
    """By the steps launched so far."""
    finish_reason: FinishReason | None = None
    stop: StopFound | None = None
    """The stop string with which it ended."""
    is_deferred: bool = False
    """Its last step deferred it."""
    has_nan: bool = False
    """The model gave this request a row without a distribution; its slot may hold NaN."""
    _under_way: deque[int] = field(default_factory=deque)
    """Maximum number of tokens emitted by each step that was launched and not yet read."""
    _carried_s: float = 0.0
    _num_deferred_steps: int = 0
    """Since the last round."""
    _rounds: list[RoundFields | WholeRound] = field(default_factory=list)
    drafted: list[list[int]] = field(default_factory=list)
    """Draft tokens of each round, kept where the end of reasoning is searched for."""
    terms: dict[int, Mapping[str, Floats]] = field(default_factory=dict)
    """Of its full drafts, by round, if they are recorded."""
    logprobs: list[int] = field(default_factory=list)
    """Of the output tokens, packed."""

    def __str__(self) -> str:
        """Its next round by its place in the record, as a message names it."""
        asked = self.request
        return f"round {self.num_rounds} of prompt {asked.prompt_id}, turn {asked.turn}, sample {asked.sample}"

    def __post_init__(self) -> None:
        self.token_ids = list(self.request.token_ids)
        self.num_prompt_tokens = len(self.token_ids)
        if self.request.sampling is not None:
            self.min_tokens = self.request.sampling.min_tokens

    @property
    def num_tokens_to_prefill(self) -> int:
        """Prompt tokens that no step launched so far reads."""
        return self.num_prompt_tokens - self.num_prefilled_tokens

    @property
    def longest_length(self) -> int:
        """Tokens that the sequence has at most once every step launched so far has been read."""
        return len(self.token_ids) + sum(self._under_way)

    @property
    def min_output_tokens(self) -> int:
        """Output tokens that it has at least by then, since every step emits one unless it is deferred."""
        return len(self.token_ids) - self.num_prompt_tokens + len(self._under_way)

    @property
    def num_rounds(self) -> int:
        return len(self._rounds)

    @property
    def rounds(self) -> list[RoundFields]:
        return [fields_of(kept) for kept in self._rounds]

    @property
    def output_token_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt_tokens :]

    @property
    def needs_host(self) -> bool:
        """Whether the host must see the drafts of its next round before they are verified."""
        grammar_state = self.request.grammar_state
        return grammar_state is not None and (self.is_deferred or grammar_state.needs_drafts)

    def launch(self, max_tokens: int) -> None:
        """Count a step that emits 1..max_tokens tokens of this sequence as launched."""
        self._under_way.append(max_tokens)

    def carry(self, share_s: float) -> None:
        """Take a share of a step that emits nothing of this sequence: it counts with the next one that does."""
        self._carried_s += share_s

    def defer(self, share_s: float) -> None:
        """Count that the oldest step under way deferred the sequence: apart from its time it had no effect."""
        # no host code would see its drafts, and it would be deferred forever
        assert self.request.grammar_state is not None, "a request without a grammar state was deferred"
        self._under_way.popleft()
        self.carry(share_s)
        self._num_deferred_steps += 1
        self.is_deferred = True

    def append_whole(
        self,
        row: list[int],
        layout: RowLayout,
        outcome: ConstraintOutcome | None,
        limits: Limits,
        arrival_s: float,
        share_s: float,
    ) -> bool:
        """Commit what the oldest step under way emitted if nothing cuts it; else False, and nothing is changed.

        Args:
            row: that the step left of a chain's round.
            layout: of the row.
            outcome, limits, arrival_s, share_s: see append_round.
        """
        num_accepted, num_drafted, is_invalid = row[layout.counts]
        num_remaining = limits.max_new_tokens - len(self.token_ids) + self.num_prompt_tokens
        if is_invalid or not 0 <= num_accepted <= num_drafted < layout.width:
            return False
        token_ids = row[layout.tokens]
        if not stays_whole(token_ids, num_drafted, num_remaining, limits.eos_token_ids):
            return False
        if outcome is not None and not is_left_whole(outcome, num_accepted, num_drafted):
            return False
        if self.request.stops is not None and self.request.stops.may_end_in(token_ids):
            return False
        self._under_way.popleft()
        self.token_ids += token_ids[: num_accepted + 1]
        kept = num_drafted, num_accepted, arrival_s, self._carried_s + share_s, self._num_deferred_steps
        self._rounds.append(kept if outcome is None else constrained_fields(kept, outcome))
        if len(row) > layout.counts.stop:
            self.logprobs += layout.logprobs(row, num_accepted + 1)
        self._carried_s, self._num_deferred_steps, self.is_deferred = 0.0, 0, False
        if self.request.parser is not None:
            self.drafted.append(layout.draft_ids(row))
        return True

    def append_round(
        self, decided: Round, outcome: ConstraintOutcome | None, limits: Limits, arrival_s: float, share_s: float
    ) -> None:
        """Commit what the oldest step under way emitted, and remember the round.

        Args:
            decided: the step's result for the request.
            outcome: of the constraint for it; None without one.
            limits: where the request ends.
            arrival_s: when the tokens were there.
            share_s: the request's share of the step's seconds.
        """
        self._under_way.popleft()
        num_output = len(self.token_ids) - self.num_prompt_tokens
        num_remaining = limits.max_new_tokens - num_output
        num_free = max(0, self.min_tokens - num_output)
        stops = self.request.stops
        text = None if stops is None else stops.behind(self.token_ids, self.num_prompt_tokens)
        result = commit(
            decided.emitted,
            decided.draft_ids,
            num_remaining,
            limits.eos_token_ids,
            outcome,
            decided.depths,
            text,
            num_free,
        )
        self.token_ids.extend(result.token_ids)
        if decided.logprobs:
            self.logprobs += decided.logprobs[: len(result.token_ids) * len(decided.logprobs) // len(decided.emitted)]
        self.finish_reason = result.finish_reason
        if stops is not None and result.finish_reason is FinishReason.stop:
            self.stop = stops.found_in(self.output_token_ids)
        self.has_nan |= decided.is_invalid
        times = arrival_s, self._carried_s + share_s, self._num_deferred_steps
        self._rounds.append(committed_fields(result, decided, outcome, *times))
        self._carried_s, self._num_deferred_steps, self.is_deferred = 0.0, 0, False
        if self.request.parser is not None:
            self.drafted.append(decided.draft_ids)

    def num_proposed_tokens(self, index: int) -> int:
        """Draft tokens of a round."""
        return self._rounds[index][0]

    def take_measured(self, index: int, draft: MeasuredDraft) -> None:
        """Remember what was measured on the draft of a round; twice is as once."""
        round_ = fields_of(self._rounds[index])
        # closed forms are for the whole draft: they stand for it only where all of it is evidence
        is_full = round_.num_draft_tokens == round_.num_proposed_tokens > 0
        bounds, num_positions = draft.position_bounds, round_.num_draft_positions
        num_bounds = round_.num_draft_tokens if num_positions is None else num_positions
        self._rounds[index] = round_._replace(
            expected_accepted=draft.expected_accepted if is_full else None,
            position_bounds=None if bounds is None else bounds[:num_bounds],
        )
        if draft.terms is not None and is_full:
            self.terms[index] = draft.terms

    @property
    def answer(self) -> Answer:
        request = self.request
        key = request.prompt_id, request.turn, request.sample
        return Answer(*key, request.seed, self.output_token_ids, self.has_nan, self.stop)
