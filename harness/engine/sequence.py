"""A request on its way through the engine: what goes in, and what is known of it while it runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from harness.constraint.grammar_state import GrammarState
from harness.constraint.outcome import ConstraintOutcome
from harness.constraint.parsers.parser import ReasoningParser
from harness.constraint.reasoning_span import find_reasoning_span
from harness.engine.commit import Commit, commit
from harness.records.acceptance_terms import DraftTerms, Floats, RequestTerms
from harness.records.schema import FinishReason, RequestRecord, RoundRecord


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
    """When it arrives, on the engine's clock; None: it is there, and counts as submitted when a slot takes it."""
    grammar_state: GrammarState | None = None
    """Holds its answer to a grammar; one of its own for every request."""
    parser: ReasoningParser | None = None
    """Finds the end of reasoning when it has ended, where no grammar state does; None if not requested."""

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
    """A request that has ended, as far as what follows it may need it."""

    prompt_id: str
    turn: int
    sample: int
    seed: int
    output_token_ids: list[int]


class Round(NamedTuple):
    """What a step decided for one request, on the host."""

    emitted: list[int]
    draft_ids: list[int]
    is_invalid: bool
    is_deferred: bool = False
    """Nothing was decided: reasoning may end in the round, and the host must see its drafts first."""
    expected_accepted: tuple[float, float, float] | None = None
    """Of the chain methods, given these drafts."""
    terms: Mapping[str, Floats] | None = None
    """Of the draft, if they are recorded."""


_RoundFields = tuple[Any, ...]
"""The fields of a RoundRecord in their order: the record itself is made and checked when the clock has stopped."""


@dataclass
class Sequence:
    """A request that occupies a slot."""

    request: Request
    slot: int
    submitted_s: float
    token_ids: list[int] = field(init=False)
    """Of the prompt, then the output so far."""
    num_prompt_tokens: int = field(init=False)
    num_prefilled_tokens: int = 0
    """By the steps launched so far."""
    finish_reason: FinishReason | None = None
    is_deferred: bool = False
    """Its last step held it back."""
    has_nan: bool = False
    """The model gave this request a row without a distribution; its slot may hold NaN."""
    _under_way: deque[int] = field(default_factory=deque)
    """Most tokens that each step emits which was launched and not yet read."""
    _carried_s: float = 0.0
    _num_deferred_steps: int = 0
    """Since the last round."""
    _rounds: list[_RoundFields] = field(default_factory=list)
    _drafted: list[list[int]] = field(default_factory=list)
    """Drafts of each round, where somebody will ask for them."""
    _terms: list[DraftTerms] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.token_ids = list(self.request.token_ids)
        self.num_prompt_tokens = len(self.token_ids)

    @property
    def num_tokens_to_prefill(self) -> int:
        """Prompt tokens that no step launched so far reads."""
        return self.num_prompt_tokens - self.num_prefilled_tokens

    @property
    def is_prefilled(self) -> bool:
        return self.num_prefilled_tokens == self.num_prompt_tokens

    @property
    def longest_length(self) -> int:
        """Tokens that the sequence has at most once every step launched so far has been read."""
        return len(self.token_ids) + sum(self._under_way)

    @property
    def min_output_tokens(self) -> int:
        """Output tokens that it has at least by then, since every step emits one unless it is deferred."""
        return len(self.token_ids) - self.num_prompt_tokens + len(self._under_way)

    @property
    def output_token_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt_tokens :]

    @property
    def _has_reasoning_to_find(self) -> bool:
        """Whether the end of its reasoning is looked for, but by no grammar state."""
        return self.request.parser is not None and self.request.grammar_state is None

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
        """Take in that the oldest step under way held the sequence back: it is as if it had not been, but for time."""
        # nobody would ever see its drafts, and it would be held for good
        assert self.request.grammar_state is not None, "a request without a guard was held back"
        self._under_way.popleft()
        self.carry(share_s)
        self._num_deferred_steps += 1
        self.is_deferred = True

    def append_round(
        self, decided: Round, outcome: ConstraintOutcome | None, limits: Limits, arrival_s: float, share_s: float
    ) -> None:
        """Commit what the oldest step under way emitted, and remember the round.

        Args:
            decided: what came out.
            outcome: what a constraint says of it; None without one.
            limits: where the request ends.
            arrival_s: when the tokens were there.
            share_s: the request's share of the step's seconds.
        """
        self._under_way.popleft()
        num_remaining = limits.max_new_tokens - (len(self.token_ids) - self.num_prompt_tokens)
        result = commit(decided.emitted, decided.draft_ids, num_remaining, limits.eos_token_ids, outcome)
        self.token_ids.extend(result.token_ids)
        self.finish_reason = result.finish_reason
        self.has_nan |= decided.is_invalid
        if decided.terms is not None and _counts_in_full(result, decided):
            self._terms.append(DraftTerms(len(self._rounds), decided.terms))
        self._carried_s += share_s
        self._rounds.append(_fields(result, decided, outcome, arrival_s, self._carried_s, self._num_deferred_steps))
        self._carried_s, self._num_deferred_steps, self.is_deferred = 0.0, 0, False
        if self.request.parser is not None:
            self._drafted.append(decided.draft_ids)

    @property
    def answer(self) -> Answer:
        request = self.request
        return Answer(request.prompt_id, request.turn, request.sample, request.seed, self.output_token_ids)

    def to_record(self) -> RequestRecord:
        """The record of a finished request.

        It takes microseconds for each round, and more where the end of reasoning is looked for; while the clock runs
        that would stall everybody's rounds whenever a request ends.
        """
        record = self._record_of_rounds()
        return self._with_reasoning_span(record) if self._has_reasoning_to_find else record

    def _record_of_rounds(self) -> RequestRecord:
        assert self.finish_reason is not None
        request, num_reasoning = self.request, None
        if request.grammar_state is not None:
            num_reasoning = request.grammar_state.num_reasoning_tokens
            if num_reasoning is not None and num_reasoning > len(self.output_token_ids):
                # the request ended, at its length or an end of sequence, in front of the marker just seen
                num_reasoning = None
        return RequestRecord(
            prompt_id=request.prompt_id,
            category=request.category,
            turn=request.turn,
            sample=request.sample,
            seed=request.seed,
            num_prompt_tokens=self.num_prompt_tokens,
            output_token_ids=tuple(self.output_token_ids),
            finish_reason=self.finish_reason,
            submitted_s=self.submitted_s,
            rounds=tuple(RoundRecord(*item) for item in self._rounds),
            num_reasoning_tokens=num_reasoning,
        )

    def _with_reasoning_span(self, record: RequestRecord) -> RequestRecord:
        """The record with where reasoning ended, and what the rounds held of it, of a request that is unwatched."""
        assert self.request.parser is not None
        emitted, start = [], self.num_prompt_tokens
        for item in record.rounds:
            emitted.append(self.token_ids[start : start + item.num_output_tokens])
            start += item.num_output_tokens
        found = find_reasoning_span(self.request.parser, emitted, self._drafted)
        pairs = zip(record.rounds, found.num_free_tokens, strict=True)
        rounds = tuple(replace(item, num_free_tokens=free) for item, free in pairs)
        return replace(record, rounds=rounds, num_reasoning_tokens=found.num_reasoning_tokens)

    def to_terms(self) -> RequestTerms:
        """The recorded terms of its full drafts."""
        request = self.request
        return RequestTerms.of((request.prompt_id, request.turn, request.sample), self._terms)


def _counts_in_full(result: Commit, decided: Round) -> bool:
    """Whether the whole draft is evidence; only then closed forms, which are for the whole draft, stand for it."""
    return result.num_draft_tokens == len(decided.draft_ids) > 0


def _fields(
    result: Commit,
    decided: Round,
    outcome: ConstraintOutcome | None,
    arrival_s: float,
    share_s: float,
    num_held_steps: int,
) -> _RoundFields:
    expected = decided.expected_accepted
    if expected is not None and not _counts_in_full(result, decided):
        expected = None
    counts = (
        len(decided.draft_ids),
        result.num_draft_tokens,
        result.num_accepted_tokens,
        len(result.token_ids),
        result.cut_reason,
        arrival_s,
        share_s,
        expected,
    )
    if outcome is None:
        return (*counts, None, result.num_cut_tokens, 0.0, None, num_held_steps)
    return (
        *counts,
        outcome.num_free_tokens,
        result.num_cut_tokens,
        outcome.host_us,
        outcome.ran_as_one_graph,
        num_held_steps,
    )


def rounds_of(decided: SequenceOf[list[int]], num_speculative_tokens: int, slots: Iterable[int]) -> dict[int, Round]:
    """The rounds of some slots that a step decided about, from the rows that it left (see StepOutput.decided)."""
    width = num_speculative_tokens + 1
    found = {}
    for slot in slots:
        row = decided[slot]
        num_accepted, num_drafted, invalid = row[width + num_speculative_tokens :]
        drafted = row[width : width + max(num_drafted, 0)]
        found[slot] = Round(row[: num_accepted + 1], drafted, bool(invalid), num_drafted < 0)
    return found
