"""The local backend: conversations through the local engine, in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from harness.backends.cell_memory import CacheBytes, CellMemory, cell_memory, check_memory
from harness.backends.model_store import ModelStore
from harness.constraint.cell_constraint import CellConstraint
from harness.constraint.grammar_text import UnusableGrammarError
from harness.drafters.chain import DrafterShape
from harness.drafters.load import LoadedHead, build_drafter
from harness.engine.engine import Engine
from harness.engine.request import Answer, Limits, Request
from harness.engine.settings import EngineSettings, draft_slack
from harness.models.target import TargetModel
from harness.records.acceptance_terms import RequestTerms
from harness.records.schema import RequestRecord
from harness.settings.cell import CellConfig, TooLong
from harness.settings.identity import key_without
from harness.workload.chat import EncodedChat, chat_messages, decode_answer, encode_chat
from harness.workload.conversations import Conversation
from harness.workload.prompt import Prompt
from harness.workload.prompt_length import exact_length

STEP_BY_STEP = (
    "while the answer of some request follows its grammar, no step is launched ahead, and drafts are drawn operation by"
    " operation; a round in which reasoning may end is run again with the host, and no step is launched ahead of it"
)
STAND_IN_NOTE = " has no tokenizer: the zoo's stands in, and its tokens mean nothing to random weights"


@dataclass(frozen=True)
class BackendRun:
    """What a backend made of some conversations."""

    requests: tuple[RequestRecord, ...]
    """In the order they finished."""
    wall_s: float
    num_skipped_turns: int
    """Turns left out because they did not fit beside max_new_tokens, and the turns after them."""
    fallbacks: tuple[str, ...]
    terms: tuple[RequestTerms, ...] = ()
    """Of the requests' full drafts, if they are recorded."""


@dataclass
class KeptEngine:
    """The engine of one or several cells between their turns."""

    engine: Engine | None = None


class LocalBackend:
    """One cell on the local engine. Models come from a store, so that the cells of a sweep share them."""

    def __init__(self, cell: CellConfig, store: ModelStore | None = None) -> None:
        store = store if store is not None else ModelStore()
        self.cell = cell
        self.models = store.models(cell.target, cell.backend)
        meta_model = self.models.meta_models.target
        # what does not fit the target is refused here
        self.models.meta_models.head(cell.drafter)
        self.tokenizer = meta_model.tokenizer
        self.cache_bytes = CacheBytes()
        self.sampling_core: str | None = None
        self.num_invalid = 0
        self._limit = self._longest_sequence
        self._notes: dict[str, None] = {meta_model.name + STAND_IN_NOTE: None} if meta_model.tokenizer_stands_in else {}
        self._num_skipped = 0
        self._is_prepared = False
        self._kept = KeptEngine()
        self._constraint = _constraint(cell, meta_model)
        self._grammars: dict[str, str] = {}
        self._unusable: dict[str, str] = {}
        """Why the schema of a prompt cannot be followed, by the prompt's id."""

    @property
    def target(self) -> TargetModel:
        """The target, loaded from here on."""
        return self.models.loaded.target

    @property
    def loaded_head(self) -> LoadedHead | None:
        """The drafting network, loaded from here on; None for drafters that have none."""
        return self.models.loaded.head(self.cell.drafter)

    @property
    def num_drafter_parameters(self) -> int:
        return 0 if self.loaded_head is None else self.loaded_head.head.num_parameters

    def prepare(self, conversations: Sequence[Conversation]) -> None:
        """Get ready for conversations; see `prepare_together`."""
        prepare_together([self], conversations)

    def take_measure(self, conversations: Sequence[Conversation]) -> None:
        """Find how long the slots must be, and refuse before anything runs what would be refused in its turn.

        Raises:
            ValueError: max_new_tokens leaves no room for a prompt, every prompt is too long, one is and
                workload.too_long is `error`, or one has no schema where answers need it.
        """
        longest, num_new = self._longest_sequence, self.cell.decoding.max_new_tokens
        if num_new >= longest:
            raise ValueError(
                f"decoding.max_new_tokens: expected fewer than {longest}, the tokens that prompt and answer may have "
                f"together (positions of the target, backend.max_length), found {num_new}"
            )
        self._limit = longest
        # a prompt is looked at once, however often it is played
        played = {item.prompt.prompt_id: item for item in conversations}
        requests = [self.first_request(item) for item in played.values()]
        if all(request is None for request in requests):
            raise ValueError(self._nothing_fits(conversations, longest - num_new))
        self._limit = self._sequence_limit(conversations)
        self._is_prepared, self._kept = True, KeptEngine()

    def _nothing_fits(self, conversations: Sequence[Conversation], max_tokens: int) -> str:
        """Why no conversation can be played: prompts that are too long, told apart from unusable schemas."""
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

    def memory(self) -> CellMemory:
        """What the cell will keep on its device, with slots as long as was measured."""
        meta_models = self.models.meta_models
        engine = self._build_engine(meta_models.target, meta_models.head(self.cell.drafter))
        return cell_memory(self.models, self.cell.drafter, engine, is_kept=self.uses_graphs)

    def generate(
        self,
        conversations: Sequence[Conversation],
        on_request: Callable[[Answer], None] | None = None,
        start_s: float = 0.0,
    ) -> BackendRun:
        """Play conversations, every turn after the model's answer to the one before.

        Args:
            conversations: in the order of admission or arrival; some of those that were prepared for.
            on_request: called with every finished request.
            start_s: what the records' clock shows at the start.

        Raises:
            ValueError: a prompt does not fit and workload.too_long is `error`.
        """
        if not self._is_prepared:
            self.prepare(conversations)
        self._num_skipped = 0
        by_key = {(item.prompt.prompt_id, item.sample): item for item in conversations}
        answers: dict[tuple[str, int], list[str]] = {key: [] for key in by_key}
        requests, arrival_s = [], start_s
        for item in conversations:
            request = self.first_request(item)
            rate = self.cell.workload.request_rate
            if rate is not None:
                arrival_s += item.gap_s(rate)
                request = request and replace(request, arrival_s=arrival_s)
            if request is not None:
                requests.append(request)

        def follow_up(answer: Answer) -> Request | None:
            if on_request is not None:
                on_request(answer)
            conversation = by_key[answer.prompt_id, answer.sample]
            if answer.turn + 1 == len(conversation.prompt.turns):
                return None
            given = answers[answer.prompt_id, answer.sample]
            given.append(decode_answer(self.tokenizer, answer.output_token_ids))
            return self._request(conversation, given)

        engine = self.engine()
        run = engine.run(requests, follow_up, start_s)
        self.num_invalid += run.num_invalid
        judged = tuple(map(self._judged, run.requests))
        return BackendRun(judged, run.wall_s, self._num_skipped, self.fallbacks, run.terms)

    def _judged(self, record: RequestRecord) -> RequestRecord:
        """The same, with what the judge says of its answer."""
        start = record.num_reasoning_tokens
        if self._constraint is None or start is None:
            return record
        grammar = self._grammars[record.prompt_id]
        return replace(record, answer_is_valid=self._constraint.validate(grammar, record.output_token_ids[start:]))

    @property
    def fallbacks(self) -> tuple[str, ...]:
        """Everything so far that changed speed or results without being asked for."""
        head = () if self.loaded_head is None else self.loaded_head.head.fallbacks
        round_tokens = self.cell.backend.max_concurrency * (self._num_speculative_tokens + 1)
        notes = [*self.target.fallbacks, *self.target.round_fallbacks(round_tokens), *head, *self._notes]
        if self.cell.constraint.is_on and self.uses_graphs:
            notes.append(STEP_BY_STEP)
        if self._unusable:
            notes.append(
                f"{len(self._unusable)} prompts whose schema llguidance cannot follow were left out, the first of them "
                f"{self._first_unusable}"
            )
        if self.num_invalid:
            notes.append(f"{self.num_invalid} verifications met a row without a distribution or an impossible draft")
        return tuple(notes)

    def first_request(self, conversation: Conversation) -> Request | None:
        """The first turn as token ids; None if it does not fit."""
        return self._request(conversation, [])

    def _request(self, conversation: Conversation, answers: Sequence[str]) -> Request | None:
        """The next turn as token ids; None if it does not fit."""
        prompt, turn = conversation.prompt, len(answers)
        encoded = self._encode(prompt, answers)
        if encoded.note is not None:
            self._notes[encoded.note] = None
        room = self._limit - self.cell.decoding.max_new_tokens
        if len(encoded.token_ids) > room:
            if self.cell.workload.too_long is TooLong.error:
                raise ValueError(
                    f"prompt {prompt.prompt_id}, turn {turn + 1}: expected at most {room} tokens beside "
                    f"max_new_tokens, found {len(encoded.token_ids)}; lower it or set workload.too_long=skip"
                )
            self._num_skipped += len(prompt.turns) - turn
            return None
        request = Request(
            prompt_id=prompt.prompt_id,
            category=prompt.category,
            turn=turn,
            sample=conversation.sample,
            seed=conversation.turn_seed(turn),
            token_ids=tuple(encoded.token_ids),
        )
        return request if self._constraint is None else self._constrained_request(request, prompt, self._constraint)

    def _constrained_request(self, request: Request, prompt: Prompt, constraint: CellConstraint) -> Request | None:
        """The request with what watches over its answer; None where its grammar cannot be followed."""
        grammar = constraint.grammar(prompt.prompt_id, prompt.schema)
        try:
            request_constraint = constraint.request_constraint(grammar)
        except UnusableGrammarError as error:
            if self.cell.workload.too_long is TooLong.error:
                raise ValueError(f"prompt {prompt.prompt_id}: {error}") from error
            # counted apart from turns that do not fit
            self._unusable[prompt.prompt_id] = str(error)
            return None
        self._grammars[prompt.prompt_id] = grammar
        return replace(request, grammar_state=request_constraint.grammar_state, parser=request_constraint.parser)

    def _encode(self, prompt: Prompt, answers: Sequence[str]) -> EncodedChat:
        """The conversation up to the next turn, cut or repeated to the workload's exact length if it has one."""
        encoded = encode_chat(self.tokenizer, chat_messages(prompt.turns, answers))
        num_tokens = self.cell.workload.prompt_tokens
        return encoded if num_tokens is None else EncodedChat(exact_length(encoded.token_ids, num_tokens), encoded.note)

    @property
    def _longest_sequence(self) -> int:
        """Tokens of prompt and output that the target's positions and the configured slots allow."""
        longest = self.models.meta_models.target.config.max_position_embeddings
        configured = self.cell.backend.max_length
        return longest if configured is None else min(longest, configured)

    def _sequence_limit(self, conversations: Sequence[Conversation]) -> int:
        """Tokens that the longest conversation can come to, every answer at its longest."""
        num_new = self.cell.decoding.max_new_tokens
        longest = 0
        for item in conversations:
            turns = item.prompt.turns
            asked = self._encode(item.prompt, [""] * (len(turns) - 1)).token_ids
            # an answer that is read back as text may come to more tokens than it was written in
            read_back = (len(turns) - 1) * (num_new + num_new // 4)
            longest = max(longest, len(asked) + read_back + num_new)
        return min(longest, self._longest_sequence)

    @property
    def _num_speculative_tokens(self) -> int:
        return 0 if self.cell.is_baseline else self.cell.drafting.num_speculative_tokens

    @property
    def uses_graphs(self) -> bool:
        """Whether its engine's steps have fixed sizes, captured as CUDA graphs on a GPU."""
        configured = self.cell.backend.graphs
        return self.models.loaded.device.type == "cuda" if configured is None else configured

    @property
    def _is_constrained(self) -> bool:
        """Whether its engine is made for requests with grammar states.

        Graphs are so for the policy none too, whose requests have none: what it is compared with runs on the same
        engine then, and not on one whose graphs and caches lie elsewhere, which alone moves times by 1 %.
        """
        constraint = self.cell.constraint
        return constraint.is_on or (self.uses_graphs and constraint.policy is not None)

    @property
    def graph_bytes(self) -> int:
        """Memory of the CUDA graphs of the cell's engine, once something was run; 0 without them."""
        return 0 if self._kept.engine is None else self._kept.engine.graph_bytes

    @property
    def engine_key(self) -> object:
        """Cells of equal keys can have one engine: those that keep it, and differ in what becomes of answers alone."""
        if not self.uses_graphs:
            return self
        return key_without(self.cell, "constraint"), self._limit, self._is_constrained

    def share_engine(self, other: LocalBackend) -> None:
        """Have one engine with another cell from here on; both are prepared and have equal keys."""
        assert self.engine_key == other.engine_key and self._kept.engine is None
        self._kept = other._kept

    def engine(self) -> Engine:
        """The engine of the next block: kept where it is costly to make, else made anew, so that the cells of a sweep
        do not hold the memory of all their caches at once."""
        engine = self._kept.engine or self._build_engine(self.target, self.loaded_head)
        self._kept.engine = engine if self.uses_graphs else None
        self.sampling_core, self.cache_bytes = engine.core.name, CacheBytes.of(engine)
        return engine

    def _build_engine(self, target: TargetModel, loaded_head: LoadedHead | None) -> Engine:
        cell, num_tokens, num_slots = self.cell, self._num_speculative_tokens, self.cell.backend.max_concurrency
        capacity = self._limit + draft_slack(num_tokens)
        shape = DrafterShape(num_slots, capacity, num_tokens, target.vocab_size)
        drafter = build_drafter(cell, loaded_head, shape)
        decoding = cell.decoding
        settings = EngineSettings(
            num_slots=num_slots,
            capacity=capacity,
            num_speculative_tokens=num_tokens,
            sampling=decoding.sampling,
            verification=cell.verification.verification(num_tokens),
            limits=Limits(decoding.max_new_tokens, frozenset() if decoding.ignore_eos else target.eos_token_ids),
            graphs=self.uses_graphs,
            # the baseline has nothing to measure, and must run as the cells that it is compared with
            overlaps=False if cell.measurement.expected_acceptance else None,
            expected_acceptance=cell.measurement.expected_acceptance and not cell.is_baseline,
            constrained=self._is_constrained,
            round_terms=cell.measurement.round_terms and not cell.is_baseline,
            prompt_tokens_beside_rounds=cell.backend.prompt_tokens_beside_rounds,
        )
        return Engine(target, drafter, settings)


def _constraint(cell: CellConfig, meta_model: TargetModel) -> CellConstraint | None:
    """What the cell asks of answers; None if nothing."""
    if cell.constraint.policy is None:
        return None
    return CellConstraint(cell.constraint, meta_model.tokenizer, meta_model.vocab_size, meta_model.eos_token_ids)


def prepare_together(backends: Sequence[LocalBackend], conversations: Sequence[Conversation]) -> None:
    """Get cells ready that take turns, on the same models, at the same conversations.

    Those that can share an engine do. Refuse, before any weights are loaded, a workload of which nothing fits the
    target, and cells whose models and caches do not fit the device.

    Raises:
        ValueError: see LocalBackend.take_measure; or memory is too small.
    """
    owners: dict[object, LocalBackend] = {}
    for backend in backends:
        backend.take_measure(conversations)
        backend.share_engine(owners.setdefault(backend.engine_key, backend))
    check_memory([owner.memory() for owner in owners.values()], backends[0].models.loaded.device)
