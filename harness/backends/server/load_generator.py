"""Puts load on a server: conversations at a fixed concurrency or at Poisson arrivals, each turn after the one before.

Knows neither what an answer says of drafts nor where records lie.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.backends.backend import OnRequest
from harness.backends.server.adapter import Adapter
from harness.backends.server.client import Client, open_session
from harness.backends.server.loop_delay import LoopDelay
from harness.backends.server.prompts import Question, ServedPrompts
from harness.backends.server.reply import MalformedAnswer, Reply, RequestFailed
from harness.records.counts import Arrival
from harness.records.schema import Failure
from harness.settings.cell import CellConfig
from harness.workload.conversations import Conversation

FINISHED = ("stop", "length")
"""Reasons for the end of a whole answer."""


@dataclass(frozen=True)
class Answered:
    """A question with its whole answer."""

    question: Question
    reply: Reply
    submitted_s: float
    arrivals: tuple[Arrival, ...]


@dataclass
class LoadResult:
    """What some conversations came to: answers, failures and the client's own times."""

    answered: list[Answered] = field(default_factory=list)
    """In the order they finished."""
    failures: list[Failure] = field(default_factory=list)
    num_skipped_turns: int = 0
    num_retried: int = 0
    wall_s: float = 0.0
    lag: LoopDelay = field(default_factory=LoopDelay)
    notes: dict[str, None] = field(default_factory=dict)


@dataclass
class LoadGenerator:
    """Plays conversations of one cell on one server."""

    cell: CellConfig
    adapter: Adapter
    prompts: ServedPrompts
    url: str
    model: str

    def play(self, conversations: Sequence[Conversation], on_request: OnRequest | None, start_s: float) -> LoadResult:
        """Play conversations; see `harness.backends.backend.Backend.generate`."""
        # before the clock starts: what does not fit is refused here
        first = [self.prompts.question(item, []) for item in conversations]
        run = _Run(self, on_request)
        try:
            asyncio.run(run.play(conversations, first, start_s))
        except BaseExceptionGroup as group:
            # one stops all: callers know it by its own class
            raise group.exceptions[0] from None
        return run.played

    @property
    def endpoint(self) -> str:
        """Address that requests go to."""
        return f"{self.url}/v1/completions" if self._takes_ids else f"{self.url}/v1/chat/completions"

    def body(self, question: Question) -> dict[str, Any]:
        """A request."""
        asked = {"prompt": list(question.token_ids)} if self._takes_ids else {"messages": list(question.messages)}
        is_held = question.grammar is not None and self.cell.constraint.is_on
        return {
            "model": self.model,
            **asked,
            "max_tokens": self.cell.decoding.max_new_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self.adapter.request_fields(question.sampling, question.seed),
            **(self.adapter.grammar_fields(str(question.grammar)) if is_held else {}),
        }

    @property
    def _takes_ids(self) -> bool:
        return self.cell.server.traits.takes_token_ids


class _Run:
    """Conversations under way."""

    def __init__(self, generator: LoadGenerator, on_request: OnRequest | None) -> None:
        self.generator = generator
        self.played = LoadResult()
        self._on_request = on_request or (lambda _: None)
        self._slots = asyncio.Semaphore(generator.cell.backend.max_concurrency)

    async def play(
        self, conversations: Sequence[Conversation], first: Sequence[Question | None], start_s: float
    ) -> None:
        cell, played, due_s = self.generator.cell, self.played, start_s
        rate, stall_timeout_s = cell.workload.request_rate, cell.server.stall_timeout_s
        async with open_session(stall_timeout_s) as session, played.lag.measured():
            origin = time.perf_counter() - start_s
            self._client = Client(
                session=session,
                url=self.generator.endpoint,
                clock=lambda: time.perf_counter() - origin,
                num_retries=cell.server.num_retries,
                stall_timeout_s=stall_timeout_s,
            )
            async with asyncio.TaskGroup() as group:
                for conversation, question in zip(conversations, first, strict=True):
                    due_s += 0.0 if rate is None else conversation.gap_s(rate)
                    group.create_task(self._converse(conversation, question, None if rate is None else due_s))
            played.wall_s = self._client.clock() - start_s
        played.num_retried = self._client.num_retried

    async def _converse(self, conversation: Conversation, question: Question | None, arrival_s: float | None) -> None:
        """Play every turn; a turn that fails or does not fit ends the conversation."""
        if arrival_s is not None:
            await asyncio.sleep(max(0.0, arrival_s - self._client.clock()))
        answers: list[str] = []
        num_turns = len(conversation.prompt.turns)
        async with self._slots:
            while question is not None and len(answers) < num_turns:
                # a conversation that arrives by itself has waited for its slot
                submitted_s = self._client.clock() if arrival_s is None or answers else arrival_s
                try:
                    answer = await self._ask(question, submitted_s)
                except RequestFailed as error:
                    self.played.failures.append(Failure(type(error).__name__, str(error), request=question.key))
                    num_turns -= 1
                    break
                self.played.answered.append(answer)
                self._on_request(sum(item.num_output_tokens for item in answer.arrivals))
                ids = answer.reply.token_ids
                answers.append(self.generator.prompts.decode(ids) if ids else answer.reply.text)
                if len(answers) < num_turns:
                    question = self.generator.prompts.question(conversation, answers)
        self.played.num_skipped_turns += num_turns - len(answers)

    async def _ask(self, question: Question, submitted_s: float) -> Answered:
        reply = await self._client.ask(self.generator.body(question))
        if reply.finish_reason not in FINISHED:
            raise MalformedAnswer(f"an answer ended for the reason {reply.finish_reason!r}, expected stop or length")
        arrivals, note = reply.arrivals()
        if not arrivals:
            raise MalformedAnswer("an answer holds no token")
        if note is not None:
            self.played.notes[note] = None
        return Answered(question, reply, submitted_s, arrivals)
