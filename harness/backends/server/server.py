"""The server backend: conversations through a server with an OpenAI-compatible interface."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from harness.backends.backend import BackendRun, Facts, Keep, OnRequest, OnRound, RefusedArm
from harness.backends.server import notes
from harness.backends.server.adapter import Adapter, Evidence
from harness.backends.server.answer_records import Recorded, recorded
from harness.backends.server.counters import Counters, CountersReset, read_counters, settled_counters
from harness.backends.server.draft_evidence import (
    NUM_MISSING,
    counted_drafts,
    evidence,
    num_missing_in,
    num_missing_of,
    told_by_record,
    told_of_drafts,
)
from harness.backends.server.get import NoAnswer, get_json, model_served
from harness.backends.server.handed_over import HandedOver
from harness.backends.server.launch_of_cell import launch_of_cell, sets_context
from harness.backends.server.load_generator import LoadGenerator
from harness.backends.server.load_result import LoadResult
from harness.backends.server.process import Servers
from harness.backends.server.prompts import ServedPrompts
from harness.backends.server.random_models import served_drafter
from harness.backends.server.rounds import places_are_told
from harness.backends.server.weights import models_of
from harness.config.cell import CellConfig
from harness.models.rounded_weights import rounded_weights_here
from harness.records.counts import DraftCounts, Knowledge
from harness.records.provenance import NO_VERSION
from harness.records.request import RequestRecord
from harness.records.schema import CLIENT_CPU, CellRecord, Failure
from harness.workload.conversations import Conversation

OTHER_LOAD = 0.05
"""Share of output tokens that a server may count beyond ours before others are suspected."""
FROM_FINE_TO_COARSE = list(Knowledge)


class ServerBackend:
    """One cell on a server, which is one that runs or is started for it."""

    Shared = Servers

    def __init__(self, cell: CellConfig, shared: Servers) -> None:
        self.cell = cell
        self.servers = shared
        self.drafter = "" if cell.is_baseline else served_drafter(cell)
        self.adapter: Adapter = cell.server.adapter(cell, self.drafter)
        self.prompts = ServedPrompts(cell)
        self._knowledge = Knowledge.rounds
        self._notes: dict[str, None] = {}
        self._num_tokens: int | None = None
        """Of prompt and answer of the longest request, where a server is told."""
        self._url: str | None = None
        self._model = ""
        self._evidence = Evidence()
        self._deaths: Sequence[str] = ()

    @staticmethod
    def resolved(cell: CellConfig) -> CellConfig:
        """The cell as it is: device and dtype are the server's, as the user states them."""
        return cell

    @staticmethod
    def prepare_together(backends: Sequence[ServerBackend], conversations: Sequence[Conversation]) -> None:
        """Look for the server that runs, or at the commands that will start one, and tokenize every prompt once.

        Raises:
            ValueError: there is no server, it does not have the model, or a command is not one.
        """
        needed: int | None = None
        for backend in backends:
            if sets_context(backend.cell):
                # the cells of a group have the same prompts
                needed = needed or max(map(backend.prompts.num_needed, conversations), default=0)
                backend._num_tokens = backend.cell.backend.max_length or needed
                backend.prompts.max_length = backend._num_tokens
            if backend.cell.server.url is None:
                launch_of_cell(backend.cell, backend.adapter, backend._num_tokens)
            else:
                backend._meet(backend.cell.server.url, None)
        for conversation in conversations:
            backends[0].prompts.question(conversation, [])

    def generate(
        self,
        conversations: Sequence[Conversation],
        on_request: OnRequest | None = None,
        start_s: float = 0.0,
        keep: Keep | None = None,
        on_round: OnRound | None = None,
    ) -> BackendRun:
        """See `harness.backends.backend.Backend.generate`.

        The load on a server cannot stand still for `keep`: another thread calls it, and only where answers tell of
        their drafts by themselves, because counts by block are those of all its requests. A server that is gone for
        good after some blocks leaves those: every request after them is a failure.

        Raises:
            ValueError: the server cannot be started, or is not what the cell's name says (RefusedArm).
        """
        try:
            self._get_ready()
        except ValueError as error:
            if self._url is None:
                raise
            gone = ((item.prompt.prompt_id, 0, item.sample) for item in conversations)
            return BackendRun((), 0.0, failures=tuple(Failure("ServerGone", str(error), request=key) for key in gone))
        self.adapter.refuse(self._evidence)
        return self._generate(conversations, on_request, start_s, keep, on_round)

    def weights(self) -> Mapping[str, str]:
        """What stands for the weights of each model, by role: digests of folders on this machine, names of others."""
        return models_of(self.cell)

    def facts(self) -> Facts:
        """What the backend found out about its cell; called after it has generated."""
        engine = f"{self.cell.server.engine.value} {self._evidence.version or NO_VERSION}"
        found = dict.fromkeys([*self._notes, *self.prompts.notes, *self._deaths])
        found |= {notes.WAITED: None} if self.cell.server.num_waiting else {}
        if not self.cell.server.traits.takes_all_sampling:
            found[notes.SERVER_SAMPLES] = None
        found |= dict.fromkeys(self.adapter.notes_on_edits(self.prompts.edits))
        found[self.cell.server.what_was_run] = None
        if not self.cell.is_baseline:
            is_coarse = self.prompts.has_stops and self._knowledge is not Knowledge.rounds
            found |= {notes.BEYOND_STOP: None} if is_coarse else {}
            of_drafts = (*self.adapter.notes.get(self._knowledge, ()), *self.adapter.doubts(self._evidence))
            found |= dict.fromkeys(of_drafts)
        return Facts(
            backend=self.cell.backend,
            models=self.weights(),
            fallbacks=tuple(found),
            rounded_weights=rounded_weights_here(self.cell.target),
            knowledge=self._knowledge,
            sampling_core=engine,
            draft_core=engine if self.cell.drafter.has_model else None,
        )

    def check(self, record: CellRecord) -> None:
        """Raise RefusedArm where the cell was to draft, and all its blocks together show no drafted token."""
        if self.cell.is_baseline or not record.requests or any(item.request is None for item in record.failures):
            return
        num_drafted, told = told_by_record(record)
        if not num_drafted:
            self._refuse_as_silent(len(record.requests), told)

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of an answer."""
        return self.prompts.decode(token_ids)

    def _get_ready(self) -> None:
        """Have a healthy server of this cell, started if need be, and know what it says about itself."""
        server = self.cell.server
        if server.url is None:
            launch = launch_of_cell(self.cell, self.adapter, self._num_tokens)
            self._deaths = self.servers.deaths.setdefault(launch, [])
            found = self.servers.url(
                launch,
                self.adapter.health_path,
                server.start_timeout_s,
                Path(server.log_folder),
                server.max_running,
            )
            self._meet(found, self.servers.log)

    def _meet(self, url: str, log: str | None) -> None:
        """Ask a server for its model, version and settings.

        Raises:
            ValueError: it does not answer, or does not have the model.
        """
        if url == self._url:
            return
        name, told = model_served(url, self.cell.server.model)
        self.prompts.max_length = self.adapter.max_length(told)
        self._url, self._model = url, name
        version, info = None, {}
        with suppress(NoAnswer):
            if self.adapter.version_path is not None:
                version = self.adapter.version_of(get_json(url + self.adapter.version_path))
        with suppress(NoAnswer):
            info = {} if self.adapter.info_path is None else dict(get_json(url + self.adapter.info_path))
        self._evidence = Evidence(version, log, info)

    def _generate(
        self,
        conversations: Sequence[Conversation],
        on_request: OnRequest | None,
        start_s: float,
        keep: Keep | None,
        on_round: OnRound | None,
    ) -> BackendRun:
        assert self._url is not None
        taken = HandedOver()

        def interim(played: LoadResult) -> bool:
            found = self._recorded(played, taken)
            if keep is None or not found.knowledge or not (found.requests or played.failures):
                return False
            if not self._is_as_named(found, played, before):
                return False
            reported = self._reported(played, self._num_missing(found.requests))
            self._look_at(played, Counters(), found.requests)
            self._know(found.knowledge)
            failures = (*played.failures, *found.failures, *self._check_tokens(played))
            keep(BackendRun(found.requests, played.wall_s, played.num_skipped_turns, failures=failures))
            taken.add(played, found, reported)
            return True

        before = read_counters(self._url, self.adapter.metrics_path)
        generator = LoadGenerator(self.cell, self.adapter, self.prompts, self._url, self._model)
        played = generator.play(conversations, on_request, start_s, keep and interim, on_round)
        found = self._recorded(played, taken)
        failures = list(played.failures)
        added = Counters()
        try:
            if before is not None and (found.requests or taken.num_requests):
                added = settled_counters(self._url, self.adapter.metrics_path).since(before)
        except CountersReset as error:
            failures.append(Failure(type(error).__name__, str(error)))
        counts = self.adapter.counts(added)
        if found.knowledge is None and not (failures or found.failures):
            found = self._recorded(played, taken, counts)
            self._notes |= {notes.CHUNKS_ARE_STEPS: None} if found.knowledge else {}
        told = taken.told_with(played) | counted_drafts(added)
        self._check_drafts(found, counts, taken, told, may_be_lost=bool(failures or found.failures))
        failures += (*found.failures, *self._check_tokens(played))
        by_block = None if failures or found.knowledge or taken.num_requests else counts
        num_missing = self._num_missing(found.requests, by_block)
        self._look_at(played, added, found.requests, taken.num_output_tokens)
        if found.requests:
            self._know(found.knowledge or (Knowledge.arrivals if counts is None else Knowledge.blocks))
        own = {**played.lag.reported, "client:num_retried": float(played.num_retried), CLIENT_CPU: played.cpu_s}
        return BackendRun(
            requests=found.requests,
            wall_s=played.wall_s,
            num_skipped_turns=played.num_skipped_turns,
            counts=counts,
            reported={**added.reported, **taken.reported_with(self._reported(played, num_missing)), **own},
            failures=tuple(failures),
        )

    def _is_as_named(self, found: Recorded, played: LoadResult, before: Counters | None) -> bool:
        """Whether all that is told so far of drafts is as the cell's name says.

        What the first answers do not show yet is no reason to refuse, nor to keep them.
        """
        if not self.cell.is_baseline:
            return found.num_drafted > 0 or not self.cell.drafter.has_model
        told = told_of_drafts([item.reply for item in played.answered])
        if before is not None:
            now = read_counters(self._url or "", self.adapter.metrics_path)
            try:
                told |= counted_drafts((now or Counters()).since(before))
            except CountersReset:
                return False
        return not max(found.num_drafted, *told.values(), 0)

    def _recorded(self, played: LoadResult, taken: HandedOver, counts: DraftCounts | None = None) -> Recorded:
        limit, check = self.cell.decoding.max_new_tokens, self.prompts.answer_check
        return recorded(played, self.adapter, limit, check, taken.knowledge, counts)

    def _reported(self, played: LoadResult, num_missing: int) -> dict[str, float]:
        found = self.adapter.reported([item.reply for item in played.answered])
        return found | ({NUM_MISSING: float(num_missing)} if num_missing else {})

    def _num_missing(self, requests: Sequence[RequestRecord], counts: DraftCounts | None = None) -> int:
        """Draft tokens by which the steps of a drafter with a model fell short of K, of which a note tells.

        Args:
            requests: of a block, or a part of it.
            counts: of the block, where its requests tell nothing.

        Raises:
            RefusedArm: some did on an engine that always drafts K tokens if it is told so.
        """
        depth, limit = self.adapter.num_tokens, self.cell.decoding.max_new_tokens
        if not self.cell.drafter.has_model:
            return 0
        found = sum(num_missing_in(item, depth, limit) for item in requests)
        found += 0 if counts is None else num_missing_of(counts, len(requests), depth)
        if found and self.adapter.full_depth:
            raise RefusedArm(
                f"expected K = {depth} draft tokens in every step, unless fewer are left to write, found {found} too "
                f"few in {len(requests)} answers; start the server with {self.adapter.full_depth}"
            )
        self._notes |= {notes.SHORT_DRAFTS: None} if found else {}
        return found

    def _know(self, knowledge: Knowledge) -> None:
        """All of the cell is known as well as the part that is known worst."""
        self._knowledge = max(self._knowledge, knowledge, key=FROM_FINE_TO_COARSE.index)

    def _check_drafts(
        self,
        found: Recorded,
        counts: DraftCounts | None,
        taken: HandedOver,
        told: Mapping[str, float],
        may_be_lost: bool,
    ) -> None:
        """Raise RefusedArm where answers or counters show that the server drafts, or does not, unlike its cell.

        A block in which n-grams find nothing is no fault: `check` judges them by their whole cell.

        Args:
            told: draft tokens by the engine's own names.
            may_be_lost: whether what tells of drafts may have been lost with a failure.
        """
        num_told, num_requests = found.num_drafted + taken.num_drafted, len(found.requests) + taken.num_requests
        is_known = (found.knowledge or taken.knowledge) is not None
        compares = is_known and not (self.cell.is_baseline or found.failures or taken.has_failures)
        num_counted = num_told if counts is None else counts.num_draft_tokens
        # a server goes on until it has read a stop string: its counters know of more drafts than the answer
        agree = num_told <= num_counted if self.prompts.has_stops else num_told == num_counted
        self._notes |= {notes.DISAGREE: None} if compares and not agree else {}
        most = max(num_told, num_counted, *told.values(), 0)
        if self.cell.is_baseline and most:
            drafted = told or {"draft tokens": most}
            raise RefusedArm(f"expected a baseline without drafts, found a server that drafts: {evidence(drafted)}")
        is_told = is_known or counts is not None or bool(told)
        must_draft = not self.cell.is_baseline and self.cell.drafter.has_model and num_requests
        # counters are those of all clients
        has_drafted = num_told if is_known else most
        if must_draft and not has_drafted and (is_told or not may_be_lost):
            self._refuse_as_silent(num_requests, told)

    def _refuse_as_silent(self, num_requests: int, told: Mapping[str, float]) -> None:
        none, others = (
            {name: value for name, value in told.items() if bool(value) is given} for given in (False, True)
        )
        raise RefusedArm(
            f"expected drafter={self.cell.drafter.kind.value}, found a server that reports no drafted token in "
            f"{num_requests} answers{f': {evidence(none)}' if none else ''}"
            f"{f'; its counters are of all its clients: {evidence(others)}' if others else ''}"
        )

    def _check_tokens(self, played: LoadResult) -> list[Failure]:
        """A failure where the server's tokens mean other text than the workload's."""
        for item in played.answered:
            ids, asked = item.reply.token_ids, item.question.token_ids
            read = item.reply.prompt_token_ids
            if (read is not None and read != asked) or item.reply.num_prompt_tokens not in (None, len(asked)):
                self._notes[notes.OTHER_PROMPTS] = None
            if ids and not self.prompts.gives_text(ids, item.reply.text):
                text = "the server's token ids are another text than the workload's tokenizer makes of them"
                return [Failure("TokenizerDiffers", f"{text}; give target.path the folder that is served")]
        return []

    def _look_at(
        self, played: LoadResult, added: Counters, requests: Sequence[RequestRecord], num_taken_tokens: int = 0
    ) -> None:
        """Remember what readers of the results must know; `num_taken_tokens` are of answers handed over before."""
        self._notes |= played.notes
        self._notes |= {notes.RETRIED: None} if played.num_retried else {}
        if not (self.adapter.tells_every_step or all(places_are_told(item.rounds) for item in requests)):
            self._notes[notes.PLACES_ARE_GUESSED] = None
        at_limit = [item.arrivals for item in played.answered if item.reply.finish_reason == "length"]
        counts = [sum(event.num_output_tokens for event in arrivals) for arrivals in at_limit]
        if any(count < self.cell.decoding.max_new_tokens for count in counts):
            self._notes[notes.ENDED_EARLY] = None
        is_cached = any((added.total(name) or 0) > 0 for name in self.adapter.cache_counters)
        if is_cached or any(item.reply.num_cached_tokens for item in played.answered):
            self._notes[notes.CACHED_PROMPTS] = None
        gaps = [gap for item in requests for gap in np.diff([event.arrival_s for event in item.events])]
        # answers of one chunk have a time to first token alone
        note = played.lag.note(gaps or [item.events[0].arrival_s - item.submitted_s for item in requests])
        if note is not None:
            self._notes[note] = None
        given = added.total(self.adapter.tokens_counter or "")
        asked = num_taken_tokens + played.num_output_tokens
        is_more = given is not None and given > asked * (1 + OTHER_LOAD) and not self.prompts.has_stops
        if is_more and not played.failures:
            self._notes[notes.OTHER_CLIENTS] = None
