"""Puts load on a server: conversations at a fixed concurrency or at Poisson arrivals, each turn after the one before.

Knows neither how answers report drafts nor where records lie.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from harness.backends.backend import KEEP_EVERY_S, OnRequest, OnRound
from harness.backends.server.adapter import Adapter
from harness.backends.server.answer_stop import ended_by, first_tokens
from harness.backends.server.client import Client, connected
from harness.backends.server.load_result import Answered, LoadResult
from harness.backends.server.notes import STOP_IS_NOT_TOLD
from harness.backends.server.prompts import Question, ServedPrompts
from harness.backends.server.reply import MalformedAnswer, RequestFailed
from harness.config.cell import CellConfig
from harness.config.constraint import GrammarConfig
from harness.records.schema import Failure
from harness.workload.chat import thinking_arguments, tools_of
from harness.workload.conversations import Conversation

ConversationKey = tuple[str, int]
"""Prompt and copy."""
LOOK_EVERY_S = 0.1
"""How often it is asked whether the run shall end."""
FINISHED = ("stop", "length")
"""Reasons for the end of a whole answer."""


Interim = Callable[[LoadResult], bool]
"""Takes the conversations that have ended and were not taken before, and returns whether it has taken these; runs in a
thread while others go on."""


@dataclass
class LoadGenerator:
    """Plays conversations of one cell on one server."""

    cell: CellConfig
    adapter: Adapter
    prompts: ServedPrompts
    url: str
    model: str

    def play(
        self,
        conversations: Sequence[Conversation],
        on_request: OnRequest | None,
        start_s: float,
        interim: Interim | None = None,
        on_round: OnRound | None = None,
    ) -> LoadResult:
        """Play conversations; see `harness.backends.backend.Backend.generate`.

        Args:
            interim: called every KEEP_EVERY_S, and once more when the user or the system ends the run.
            on_round: called every LOOK_EVERY_S.

        Returns:
            The answers that `interim` has not taken, and all failures, times and counts.
        """
        # before the clock starts: what does not fit is refused here
        first = [self.prompts.question(item, []) for item in conversations]
        run = _Run(self, on_request, start_s, interim, on_round)
        try:
            asyncio.run(run.play(conversations, first))
            if run.played.failures and on_round is not None:
                # the signal that ends the run may have ended the server first
                on_round()
        except BaseException as error:
            stop = error
            while isinstance(stop, BaseExceptionGroup):
                # one stops all: callers know it by its own class
                stop = stop.exceptions[0]
            if interim is not None and not isinstance(stop, Exception):
                # what a thread was handing over when the run was stopped
                run.forget()
                run.hand_over(interim, *run.newly_ended(is_last=True))
            raise stop from None
        run.forget()
        return run.played

    @property
    def endpoint(self) -> str:
        """Address that requests go to."""
        return self.url + (self.adapter.completions_path if self._takes_ids else "/v1/chat/completions")

    def body(self, question: Question) -> dict[str, Any]:
        """A request."""
        asked = {"prompt": list(question.token_ids)} if self._takes_ids else self._chat(question)
        is_held = question.grammar is not None and isinstance(self.cell.constraint, GrammarConfig)
        return {
            "model": self.model,
            **asked,
            "max_tokens": self.cell.decoding.max_new_tokens,
            **({} if question.stops is None else {"stop": list(question.stops.strings)}),
            "stream": True,
            "stream_options": {"include_usage": True},
            **self.adapter.request_fields(question.sampling, question.seed),
            **(self.adapter.grammar_fields(str(question.grammar)) if is_held else {}),
        }

    def _chat(self, question: Question) -> dict[str, Any]:
        """The messages, and the switch for reasoning where it is set, for a server that has the template itself."""
        thinking = self.cell.workload.thinking
        switch = {} if thinking is None else {"chat_template_kwargs": thinking_arguments(thinking)}
        tools = tools_of(question.conversation.prompt)
        return {"messages": list(question.messages), **({} if tools is None else {"tools": tools}), **switch}

    @property
    def _takes_ids(self) -> bool:
        return self.cell.server.traits.takes_token_ids


class _Run:
    """Conversations under way."""

    def __init__(
        self,
        generator: LoadGenerator,
        on_request: OnRequest | None,
        start_s: float,
        interim: Interim | None,
        on_round: OnRound | None,
    ) -> None:
        self.generator = generator
        self.played = LoadResult()
        self._start_s, self._interim, self._on_round = start_s, interim, on_round
        self._in_flight: dict[ConversationKey, float] = {}
        """When the request of a conversation was sent, or is due."""
        self._failed: dict[ConversationKey, tuple[float, float]] = {}
        """When the request that ended a conversation was sent, and when it failed."""
        self._skipped: dict[ConversationKey, int] = {}
        """Turns left out of each conversation that has ended."""
        self._handed_over: set[ConversationKey] = set()
        self._handed_over_s = 0.0
        self._on_request = on_request or (lambda _: None)
        cell = generator.cell
        self._slots = asyncio.Semaphore(cell.backend.max_concurrency + cell.server.num_waiting)

    async def play(self, conversations: Sequence[Conversation], first: Sequence[Question | None]) -> None:
        cell, played, start_s = self.generator.cell, self.played, self._start_s
        due_s = start_s
        stall_timeout_s = cell.server.stall_timeout_s
        are_kept = self.generator.adapter.keeps_connections
        async with connected(stall_timeout_s, are_kept=are_kept) as connections, played.lag.measured():
            origin, cpu_s = time.perf_counter() - start_s, time.process_time()
            self._client = Client(
                connections=connections,
                url=self.generator.endpoint,
                clock=lambda: time.perf_counter() - origin,
                num_retries=cell.server.num_retries,
                stall_timeout_s=stall_timeout_s,
                new_reply=self.generator.adapter.reply,
            )
            async with self._beside(), asyncio.TaskGroup() as group:
                for place, (conversation, question) in enumerate(zip(conversations, first, strict=True)):
                    rate = cell.workload.rate_at(place)
                    due_s += 0.0 if rate is None else conversation.gap_s(rate)
                    group.create_task(self._converse(conversation, question, None if rate is None else due_s))
            played.wall_s, played.cpu_s = self._client.clock() - start_s, time.process_time() - cpu_s
        played.num_skipped_turns = sum(self._skipped.values())
        played.num_retried = self._client.num_retried

    @asynccontextmanager
    async def _beside(self) -> AsyncIterator[None]:
        """While the body runs, hand over what has ended and see whether the run shall end; an error there stops it."""
        async with asyncio.TaskGroup() as group:
            tasks = [] if self._interim is None else [group.create_task(self._hand_over(self._interim))]
            tasks += [] if self._on_round is None else [group.create_task(self._look(self._on_round))]
            yield
            for task in tasks:
                task.cancel()

    async def _look(self, on_round: OnRound) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            on_round()

    async def _hand_over(self, interim: Interim) -> None:
        while True:
            await asyncio.sleep(KEEP_EVERY_S)
            await asyncio.to_thread(self.hand_over, interim, *self.newly_ended())
            self.forget()

    def hand_over(self, interim: Interim, found: LoadResult, keys: set[ConversationKey]) -> None:
        """Offer conversations; those that are declined are offered again."""
        self._handed_over |= keys
        self._handed_over_s += found.wall_s
        if not interim(found):
            self._handed_over -= keys
            self._handed_over_s -= found.wall_s

    def forget(self) -> None:
        """Drop answers that were taken, all but the time in which they were in flight."""
        left: list[Answered] = []
        for item in self.played.answered:
            if _conversation(item.question.key) in self._handed_over:
                self.played.others.append(item.span)
            else:
                left.append(item)
        self.played.answered = left

    def newly_ended(self, is_last: bool = False) -> tuple[LoadResult, set[ConversationKey]]:
        """The conversations that have ended and were not taken yet, with the time of these and that nothing took.

        Args:
            is_last: whether the run is being stopped: what has failed is then played again later.
        """
        now_s, played = self._client.clock(), self.played
        new = self._skipped.keys() - self._handed_over - (self._failed.keys() if is_last else set())
        by_place = [(item, _conversation(item.question.key)) for item in played.answered]
        under_way = [item.span for item, key in by_place if key not in self._handed_over | new]
        under_way += [(sent_s, now_s) for sent_s in self._in_flight.values() if sent_s < now_s]
        under_way += [span for key, span in self._failed.items() if key not in self._handed_over | new]
        found = replace(
            played,
            answered=[item for item, key in by_place if key in new],
            failures=[item for item in played.failures if item.request and _conversation(item.request) in new],
            num_skipped_turns=sum(self._skipped[key] for key in new),
            num_retried=self._client.num_retried,
            others=under_way + played.others,
        )
        starts, ends = (np.array([span[place] for span in under_way]) for place in (0, 1))
        taken_s = now_s - self._start_s - float((found.clock(ends) - found.clock(starts)).sum())
        found.wall_s = max(0.0, taken_s - self._handed_over_s)
        return found, new

    async def _converse(self, conversation: Conversation, question: Question | None, arrival_s: float | None) -> None:
        """Play every turn; a turn that fails or does not fit ends the conversation."""
        answers: list[str] = []
        num_turns = len(conversation.prompt.turns)
        key = conversation.prompt.prompt_id, conversation.sample
        if arrival_s is not None:
            # in flight from its arrival on, even while it waits for a slot
            self._in_flight[key] = arrival_s
            await asyncio.sleep(max(0.0, arrival_s - self._client.clock()))
        async with self._slots:
            while question is not None and len(answers) < num_turns:
                # a conversation that arrives by itself has waited for its slot
                submitted_s = self._client.clock() if arrival_s is None or answers else arrival_s
                self._in_flight[key] = submitted_s
                try:
                    answer = await self._ask(question, submitted_s)
                except RequestFailed as error:
                    self._failed[key] = self._in_flight.pop(key), self._client.clock()
                    self.played.failures.append(Failure(type(error).__name__, str(error), request=question.key))
                    num_turns -= 1
                    break
                # one that is cancelled was in flight to the end
                del self._in_flight[key]
                self.played.answered.append(answer)
                self._on_request(sum(item.num_output_tokens for item in answer.arrivals))
                answers.append(self._text(answer))
                if len(answers) < num_turns:
                    question = self.generator.prompts.question(conversation, answers)
        # a conversation that does not fit has sent nothing
        self._in_flight.pop(key, None)
        self._skipped[key] = num_turns - len(answers)

    async def _ask(self, question: Question, submitted_s: float) -> Answered:
        reply = await self._client.ask(self.generator.body(question))
        if reply.finish_reason not in FINISHED:
            raise MalformedAnswer(f"an answer ended for the reason {reply.finish_reason!r}, expected stop or length")
        reply.find_held_ids(lambda: self.generator.prompts.vocabulary)
        arrivals, note = reply.arrivals()
        if not arrivals:
            raise MalformedAnswer("an answer holds no token")
        if note is not None:
            self.played.notes[note] = None
        stop = None
        if question.stops is not None:
            stop, number = ended_by(reply, question.stops)
            arrivals = arrivals if number is None else first_tokens(arrivals, number)
            is_told = reply.tells_stop or bool(reply.token_ids)
            if stop is None and reply.finish_reason == "stop" and not is_told:
                self.played.notes[STOP_IS_NOT_TOLD] = None
        return Answered(question, reply, submitted_s, arrivals, stop)

    def _text(self, answer: Answered) -> str:
        """What the next turn reads of an answer."""
        ids, stop = answer.token_ids, answer.stop
        is_known = ids and (stop is None or stop.num_cut_characters is not None)
        return self.generator.prompts.decode(ids, stop) if is_known else answer.reply.text


def _conversation(key: tuple[str, int, int]) -> ConversationKey:
    return key[0], key[2]
