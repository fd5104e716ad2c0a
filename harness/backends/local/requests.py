"""From conversations to requests of the engine: chat text as token ids, what fits a slot, the grammar of an answer.

This module knows one cell and its target's tokenizer; it does not know when requests run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from harness.backends.stops_of_cell import StopsOfCell
from harness.config.cell import CellConfig
from harness.config.constraint import ENDS_BY_GRAMMAR, AnswerConfig, GrammarConfig
from harness.config.guarantee import check_promise
from harness.config.sampling import SamplingSettings
from harness.config.workload import TooLong
from harness.engine.constraint.cell_constraint import CellConstraint
from harness.engine.constraint.grammar_text import UnusableGrammarError
from harness.engine.request import Request
from harness.records.request import RequestRecord
from harness.workload.chat import EncodedChat, encode_prompt
from harness.workload.conversations import Conversation, exact_length
from harness.workload.prompt import Prompt

STAND_IN_NOTE = " has no tokenizer: the zoo's stands in, and its tokens mean nothing to random weights"

MIXED_NOTE = (
    "some requests cut their distribution (top-k, top-p, min-p) and others do not: on a GPU every step launches the "
    "sampling kernels for both"
)


class TargetOfRequests(Protocol):
    """What requests depend on of a target: a loaded one, or its files (`harness.models.described_target`)."""

    @property
    def name(self) -> str: ...

    @property
    def tokenizer(self) -> Any: ...

    @property
    def tokenizer_stands_in(self) -> bool: ...

    @property
    def num_positions(self) -> int: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def eos_token_ids(self) -> frozenset[int]: ...


class CellRequests:
    """Makes the requests of one cell, and remembers what it had to leave out."""

    def __init__(self, cell: CellConfig, target: TargetOfRequests) -> None:
        self._cell = cell
        self.tokenizer = target.tokenizer
        configured, positions = cell.backend.max_length, target.num_positions
        self._longest_sequence = positions if configured is None else min(positions, configured)
        self.limit = self._longest_sequence
        """Tokens of prompt and output that a slot holds."""
        self.cuts: frozenset[bool] = frozenset()
        """Whether requests cut their distribution: of all requests."""
        self.num_fixed_tokens: int | None = None
        """Of a request at most, see EngineSettings; None where none changes the target's logits."""
        self._eos_token_ids = frozenset() if cell.decoding.ignore_eos else target.eos_token_ids
        self._vocab_size = target.vocab_size
        self.num_skipped_turns = 0
        self._notes: dict[str, None] = {target.name + STAND_IN_NOTE: None} if target.tokenizer_stands_in else {}
        self._constraint = (
            CellConstraint(cell.constraint, target.tokenizer, target.vocab_size, target.eos_token_ids)
            if isinstance(cell.constraint, AnswerConfig)
            else None
        )
        self._stops = StopsOfCell(cell, lambda: target.tokenizer)
        self._grammars: dict[str, str] = {}
        self._unusable: dict[str, str] = {}
        """Why the schema of a prompt cannot be followed, by the prompt's id."""

    def fit_slots(self, conversations: Sequence[Conversation]) -> None:
        """Find how long the slots must be, and refuse before anything runs what would be refused later.

        Raises:
            ValueError: max_new_tokens leaves no room for a prompt, every prompt is too long, one is and
                workload.too_long is `error`, one has no schema where answers need it, or a token with a bias is none of
                the target's.
        """
        longest, num_new = self._longest_sequence, self._cell.decoding.max_new_tokens
        if num_new >= longest:
            raise ValueError(
                f"decoding.max_new_tokens: expected fewer than {longest}, the tokens that prompt and answer may have "
                f"together (positions of the target, backend.max_length), found {num_new}"
            )
        self.limit = longest
        # a prompt is looked at once, however often it is played
        played = {item.prompt.prompt_id: item for item in conversations}
        sampling = [sampling_of(self._cell, item.prompt) for item in played.values()]
        requests = [self.first(item) for item in played.values()]
        self.cuts = frozenset(own.truncates for own, request in zip(sampling, requests, strict=True) if request)
        edits = [own for own, request in zip(sampling, requests, strict=True) if request and own.edits]
        self._check_biases(edits)
        self.num_fixed_tokens = max((own.num_fixed_tokens(self._eos_token_ids) for own in edits), default=None)
        if all(request is None for request in requests):
            raise ValueError(self._nothing_fits(conversations, longest - num_new))
        self.limit = min(longest, max(map(self._max_tokens, conversations)))

    def _check_biases(self, edits: Sequence[SamplingSettings]) -> None:
        """Raise ValueError for a bias of a token that the target does not have."""
        for token_id in (token_id for own in edits for token_id in own.biases):
            if token_id >= self._vocab_size:
                raise ValueError(
                    f"decoding.logit_bias: expected ids of tokens below {self._vocab_size}, the target's vocabulary, "
                    f"found {token_id}"
                )

    def first(self, conversation: Conversation) -> Request | None:
        """The first turn; None if it does not fit."""
        return self.next(conversation, [])

    def next(self, conversation: Conversation, answers: Sequence[str]) -> Request | None:
        """The turn after some answers; None if it does not fit."""
        prompt, turn = conversation.prompt, len(answers)
        encoded = self._encode(prompt, answers)
        if encoded.note is not None:
            self._notes[encoded.note] = None
        room = self.limit - self._cell.decoding.max_new_tokens
        if len(encoded.token_ids) > room:
            if self._cell.workload.too_long is TooLong.error:
                raise ValueError(
                    f"prompt {prompt.prompt_id}, turn {turn + 1}: expected at most {room} tokens beside "
                    f"max_new_tokens, found {len(encoded.token_ids)}; lower it or set workload.too_long=skip"
                )
            self.num_skipped_turns += len(prompt.turns) - turn
            return None
        default = self._cell.decoding.sampling
        own = default if prompt.sampling is None else prompt.sampling.over(default)
        request = Request(
            prompt_id=prompt.prompt_id,
            category=prompt.category,
            turn=turn,
            sample=conversation.sample,
            seed=conversation.turn_seed(turn),
            token_ids=tuple(encoded.token_ids),
            sampling=None if prompt.sampling is None else own,
            stops=self._stops.of(prompt, own.min_tokens),
        )
        return request if self._constraint is None else self._constrained(request, prompt, self._constraint)

    @property
    def longest_sequence(self) -> int:
        """Tokens that prompt and answer may have together: positions of the target, backend.max_length."""
        return self._longest_sequence

    @property
    def unusable(self) -> Mapping[str, str]:
        """Why the schema of a prompt cannot be followed, by the prompt's id: of the prompts asked for so far."""
        return self._unusable

    def validated(self, record: RequestRecord) -> RequestRecord:
        """The record with the validator's verdict on its answer, where there is a grammar."""
        start = record.num_reasoning_tokens
        if self._constraint is None or start is None:
            return record
        grammar = self._grammars[record.prompt_id]
        answer = record.output_token_ids[start:]
        return replace(record, answer_is_valid=self._constraint.validate(grammar, answer, record.stop))

    @property
    def notes(self) -> tuple[str, ...]:
        """What readers of the results must know about the prompts."""
        notes = (*self._notes, *([MIXED_NOTE] if len(self.cuts) > 1 else []))
        if not self._unusable:
            return notes
        return (
            *notes,
            f"{len(self._unusable)} prompts whose schema llguidance cannot follow were left out, the first of them "
            f"{self._first_unusable}",
        )

    def _constrained(self, request: Request, prompt: Prompt, constraint: CellConstraint) -> Request | None:
        """The request with its grammar; None where the grammar cannot be followed."""
        grammar = constraint.grammar(prompt.prompt_id, prompt.schema)
        try:
            request_constraint = constraint.request_constraint(grammar)
        except UnusableGrammarError as error:
            if self._cell.workload.too_long is TooLong.error:
                raise ValueError(f"prompt {prompt.prompt_id}: {error}") from error
            # counted apart from turns that do not fit
            self._unusable[prompt.prompt_id] = str(error)
            return None
        self._grammars[prompt.prompt_id] = grammar
        return replace(request, grammar_state=request_constraint.grammar_state, parser=request_constraint.parser)

    def _encode(self, prompt: Prompt, answers: Sequence[str]) -> EncodedChat:
        """The conversation up to the next turn, cut or repeated to the workload's exact length if it has one."""
        encoded = encode_prompt(self.tokenizer, prompt, answers, self._cell.workload.thinking)
        num_tokens = self._cell.workload.prompt_tokens
        return encoded if num_tokens is None else EncodedChat(exact_length(encoded.token_ids, num_tokens), encoded.note)

    def _max_tokens(self, conversation: Conversation) -> int:
        """Tokens that a conversation can come to, every answer at its longest."""
        num_new, prompt = self._cell.decoding.max_new_tokens, conversation.prompt
        asked = self._encode(prompt, [""] * (len(prompt.turns) - 1)).token_ids
        # an answer that is read back as text may come to more tokens than it was written in
        return len(asked) + prompt.num_generated_between * (num_new + num_new // 4) + num_new

    def _nothing_fits(self, conversations: Sequence[Conversation], max_tokens: int) -> str:
        """Why no conversation can run: prompts that are too long, told apart from unusable schemas."""
        num_unusable = sum(item.prompt.prompt_id in self._unusable for item in conversations)
        num_long = len(conversations) - num_unusable
        parts = [f"found none among {len(conversations)}"]
        if num_long:
            advice = "lower decoding.max_new_tokens or take shorter prompts"
            parts.append(f"{num_long} are longer: {advice}" if num_unusable else advice)
        if num_unusable:
            parts.append(f"{num_unusable} have an unusable schema ({self._first_unusable}): mend the schemas")
        schema = " with a schema that llguidance can follow" if num_unusable else ""
        return (
            f"workload: expected a prompt of at most {max_tokens} tokens beside its answer{schema}, {'; '.join(parts)}"
        )

    @property
    def _first_unusable(self) -> str:
        """The first prompt whose schema cannot be followed, and why."""
        prompt_id, reason = next(iter(self._unusable.items()))
        return f"prompt {prompt_id}: {reason}"


def sampling_of(cell: CellConfig, prompt: Prompt) -> SamplingSettings:
    """The sampling parameters of a prompt's requests.

    Raises:
        ValueError: its sampling and the cell's settings are an invalid combination, or promise something else about
            the output than the cell does.
    """
    own = cell.decoding.sampling if prompt.sampling is None else prompt.sampling.over(cell.decoding.sampling)
    if prompt.sampling is None:
        return own
    if own.min_tokens and isinstance(cell.constraint, GrammarConfig):
        raise ValueError(f"prompt {prompt.prompt_id}: sampling.min_tokens: {ENDS_BY_GRAMMAR}, found {own.min_tokens}")
    check_promise(cell, own, prompt.prompt_id)
    return own
