"""The local backend: conversations through the local engine, in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harness.backends.model_store import ModelStore
from harness.chat import chat_messages, encode_chat
from harness.config import CellConfig, TooLong
from harness.drafters.chain import ChainShape
from harness.drafters.load import build_drafter
from harness.engine.engine import Engine, EngineSettings, SamplingSettings
from harness.engine.sequence import Limits, Request
from harness.records import RequestRecord
from harness.workload import Conversation


@dataclass(frozen=True)
class BackendRun:
    """What a backend made of some conversations."""

    requests: tuple[RequestRecord, ...]
    """In the order they finished."""
    wall_s: float
    num_skipped_turns: int
    """Turns left out because they did not fit beside max_new_tokens."""
    fallbacks: tuple[str, ...]


class LocalBackend:
    """One cell on the local engine. Models come from a store, so that the cells of a sweep share them."""

    def __init__(self, cell: CellConfig, store: ModelStore | None = None) -> None:
        store = store if store is not None else ModelStore()
        self.cell = cell
        self.target = store.target(cell.target, cell.backend)
        self.loaded_head = store.head(cell.drafter)
        self.tokenizer = self.target.tokenizer
        self.logit_cache_bytes = 0
        self._fallbacks: dict[str, None] = {}
        self._num_skipped = 0

    @property
    def num_drafter_parameters(self) -> int:
        return 0 if self.loaded_head is None else self.loaded_head.head.num_parameters

    def generate(
        self,
        conversations: Sequence[Conversation],
        on_request: Callable[[RequestRecord], None] | None = None,
        start_s: float = 0.0,
    ) -> BackendRun:
        """Play conversations, every turn after the model's answer to the one before.

        Args:
            conversations: in the order of admission.
            on_request: called with every finished request.
            start_s: what the records' clock shows at the start.

        Raises:
            ValueError: a prompt does not fit and workload.too_long is `error`.
        """
        self._num_skipped = 0
        by_key = {(item.prompt.prompt_id, item.sample): item for item in conversations}
        answers: dict[tuple[str, int], list[str]] = {key: [] for key in by_key}
        first = [self._request(item, []) for item in conversations]
        requests = [request for request in first if request is not None]
        engine = self._engine(conversations, requests)

        def follow_up(record: RequestRecord) -> Request | None:
            if on_request is not None:
                on_request(record)
            conversation = by_key[record.prompt_id, record.sample]
            given = answers[record.prompt_id, record.sample]
            given.append(self.tokenizer.decode(record.output_token_ids, skip_special_tokens=True))
            return self._request(conversation, given) if len(given) < len(conversation.prompt.turns) else None

        run = engine.run(requests, follow_up, start_s)
        if run.num_invalid_rows:
            self._fallbacks[
                f"{run.num_invalid_rows} rows of logits were NaN or all -inf; their tokens mean nothing"
            ] = None
        return BackendRun(run.requests, run.wall_s, self._num_skipped, tuple(self._fallbacks))

    def _request(self, conversation: Conversation, answers: Sequence[str]) -> Request | None:
        """The next turn as token ids; None if it does not fit."""
        prompt, turn = conversation.prompt, len(answers)
        encoded = encode_chat(self.tokenizer, chat_messages(prompt.turns, answers))
        if encoded.note is not None:
            self._fallbacks[encoded.note] = None
        longest = self._longest_sequence - self.cell.decoding.max_new_tokens
        if len(encoded.token_ids) > longest:
            if self.cell.workload.too_long is TooLong.error:
                raise ValueError(
                    f"prompt {prompt.prompt_id}, turn {turn + 1}: expected at most {longest} tokens beside "
                    f"max_new_tokens, found {len(encoded.token_ids)}; lower it or set workload.too_long=skip"
                )
            self._num_skipped += 1
            return None
        return Request(
            prompt_id=prompt.prompt_id,
            category=prompt.category,
            turn=turn,
            sample=conversation.sample,
            seed=conversation.turn_seed(turn),
            token_ids=tuple(encoded.token_ids),
        )

    @property
    def _longest_sequence(self) -> int:
        """Tokens of prompt and output that the target's positions and the configured slots allow."""
        longest = self.target.config.max_position_embeddings
        configured = self.cell.backend.max_length
        return longest if configured is None else min(longest, configured)

    def _engine(self, conversations: Sequence[Conversation], requests: Sequence[Request]) -> Engine:
        cell, num_tokens = self.cell, self.cell.drafting.num_speculative_tokens
        num_tokens = 0 if cell.is_baseline else num_tokens
        num_turns = max((len(item.prompt.turns) for item in conversations), default=1)
        longest = max((len(request.token_ids) for request in requests), default=1) + cell.decoding.max_new_tokens
        # the length of a later turn depends on the answers before it
        sequence = longest if num_turns == 1 else self._longest_sequence
        # room for the drafts of the last round, and for a draft model's position shifted by one
        capacity = sequence + num_tokens + 2
        num_slots = max(1, min(cell.backend.max_concurrency, len(requests)))
        shape = ChainShape(num_slots, capacity, num_tokens, self.target.vocab_size)
        drafter = build_drafter(cell, self.loaded_head, shape)
        self.logit_cache_bytes = drafter.logit_cache_bytes
        decoding = cell.decoding
        settings = EngineSettings(
            num_slots=num_slots,
            capacity=capacity,
            num_speculative_tokens=num_tokens,
            sampling=SamplingSettings(decoding.temperature, decoding.top_k, decoding.top_p, decoding.min_p),
            verification=cell.verification.verification(num_tokens),
            limits=Limits(decoding.max_new_tokens, frozenset() if decoding.ignore_eos else self.target.eos_token_ids),
            expected_acceptance=cell.measurement.expected_acceptance and not cell.is_baseline,
        )
        return Engine(self.target, drafter, settings)
