"""The local backend: conversations through the engine of this process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import zip_longest

from harness.backends.backend import KEEP_EVERY_S, BackendRun, Facts, Keep, OnRequest, OnRound
from harness.backends.local.cell_memory import check_memory
from harness.backends.local.engine_of_cell import EngineOfCell
from harness.backends.local.kernels_ahead import KernelsAhead, kernels_ahead_of
from harness.backends.local.model_store import ModelStore
from harness.backends.local.requests import CellRequests
from harness.config.cell import CellConfig
from harness.config.constraint import AnswerDrafts, GrammarConfig
from harness.config.device import resolve_device
from harness.config.drafter import DrafterKind
from harness.config.imported import ImportPath
from harness.drafters.registry import LoadedHead
from harness.engine.engine import Engine
from harness.engine.request import Answer, Request
from harness.engine.to_records import EngineRun, Keeping
from harness.models.assumptions import by_role
from harness.models.target import TargetModel
from harness.records.acceptance_terms import RequestTerms
from harness.records.request import RequestRecord
from harness.workload.chat import decode_answer
from harness.workload.conversations import Conversation

STEP_BY_STEP = (
    "while the answer of some request follows its grammar, no step is launched ahead, and drafts are drawn operation by"
    " operation; a round in which reasoning may end is run again with the host, and no step is launched ahead of it"
)
IN_PARTS = (
    "while the answer of some request follows its grammar, only drafts and the target's forward are launched ahead; a"
    " round in which reasoning may end is run again with the host"
)
ON_A_CPU = {
    "graphs": "backend.graphs=true on a CPU: steps have the fixed sizes of CUDA graphs and run operation by operation",
    "fused": "backend.fused=true on a CPU: layers run through the plain twins of the fused operations",
}
"""What stands in for what a GPU has, by the setting that asked for it."""

NUM_WARM_UP_STEPS = 3
"""That a warm-up on a CPU takes, where later steps run operations that have run already: the prompts, two rounds."""


class LocalBackend:
    """One cell on the local engine. Models come from a store, so that the cells of a sweep share them."""

    Shared = ModelStore

    def __init__(self, cell: CellConfig, shared: ModelStore | None = None) -> None:
        self.cell = cell
        self.models = (ModelStore() if shared is None else shared).models(cell.target, cell.local)
        meta_models = self.models.meta_models
        # what does not fit the target is refused here
        meta_models.head(cell.drafter)
        self.requests = CellRequests(cell, meta_models.target)
        self.engine_of_cell = EngineOfCell(cell, self.models)
        self._is_prepared = False
        self._kernels_ahead: KernelsAhead | None = None
        self._start_note: str | None = None

    @staticmethod
    def resolved(cell: CellConfig) -> CellConfig:
        """The cell with device and graphs, and the dtype where the checkpoint does not decide it."""
        device = resolve_device(cell.backend.device)
        return replace(cell, backend=cell.local.on(device.type))

    @staticmethod
    def prepare_together(backends: Sequence[LocalBackend], conversations: Sequence[Conversation]) -> None:
        """Get cells ready that take turns, on the same models, at the same conversations.

        Those that can share an engine do; on a GPU their kernels are compiled from here on. Refuse, before any
        weights are loaded, a workload of which nothing fits the target, and cells whose models and caches do not fit
        the device.

        Raises:
            ValueError: see CellRequests.fit_slots; or memory is too small.
        """
        owners: dict[object, EngineOfCell] = {}
        for backend in backends:
            backend.fit_slots(conversations)
            engine = backend.engine_of_cell
            engine.share(owners.setdefault(engine.key, engine))
        device = backends[0].models.loaded.device
        check_memory([owner.memory for owner in owners.values()], device)
        kernels_ahead = kernels_ahead_of(list(owners.values()), device)
        for backend in backends:
            backend._kernels_ahead = kernels_ahead

    def prepare(self, conversations: Sequence[Conversation]) -> None:
        """Get ready alone; see `prepare_together`."""
        self.prepare_together([self], conversations)

    def fit_slots(self, conversations: Sequence[Conversation]) -> None:
        """Find how long the slots must be; see CellRequests.fit_slots."""
        self.requests.fit_slots(conversations)
        self.engine_of_cell.set_limit(self.requests.limit, self.requests.cuts, self.requests.num_fixed_tokens)
        self._is_prepared = True

    @property
    def target(self) -> TargetModel:
        """The target, loaded from here on."""
        return self.models.loaded.target

    @property
    def loaded_head(self) -> LoadedHead | None:
        """The drafting network, loaded from here on; None for drafters that have none."""
        return self.models.loaded.head(self.cell.drafter)

    def weights(self) -> Mapping[str, str]:
        """Digest of the weights of each model that takes part, by role; needs no loaded weights."""
        return self.engine_of_cell.weights

    def generate(
        self,
        conversations: Sequence[Conversation],
        on_request: OnRequest | None = None,
        start_s: float = 0.0,
        keep: Keep | None = None,
        on_round: OnRound | None = None,
    ) -> BackendRun:
        """See `harness.backends.backend.Backend.generate`; gets ready first if nothing was prepared."""
        if not self._is_prepared:
            self.prepare(conversations)
        self.requests.num_skipped_turns = 0
        played = _Played(conversations)

        def follow_up(answer: Answer) -> Request | None:
            if answer.is_invalid:
                raise ValueError(_invalid(answer, self.cell.drafter.kind))
            conversation, answers = played.conversation(answer), played.answers(answer)
            request = None
            if answer.turn + 1 < len(conversation.prompt.turns):
                answers.append(decode_answer(self.requests.tokenizer, answer.output_token_ids, answer.stop))
                request = self.requests.next(conversation, answers)
            if request is None:
                played.end(answer)
            if on_request is not None:
                on_request(len(answer.output_token_ids))
            return request

        def hand_over(run: EngineRun) -> None:
            assert keep is not None
            # what was computed without a rank that has ended is not kept
            self.target.check_others()
            played.take_in(map(self.requests.validated, run.requests), run.terms, run.idle_s)
            keep(played.ended())

        requests, engine = self._arriving(conversations, start_s), self.ready_engine()
        try:
            run = engine.run(requests, follow_up, start_s, keep and Keeping(KEEP_EVERY_S, hand_over), on_round)
            self.target.check_others()
        except BaseException:
            self.engine_of_cell.forget()
            raise
        played.take_in(map(self.requests.validated, run.requests), run.terms, run.idle_s)
        return replace(played.ended(), wall_s=run.wall_s, num_skipped_turns=self.requests.num_skipped_turns)

    def ready_engine(self) -> Engine:
        """The engine of the next block; where its steps are captured, they are, and their kernels compiled."""
        engine = self.engine_of_cell.engine()
        if self._kernels_ahead is not None:
            self._start_note = self._kernels_ahead.capture(engine, self.engine_of_cell.steps) or self._start_note
        return engine

    def warm_up(self, conversations: Sequence[Conversation], on_round: OnRound | None = None) -> None:
        """Run some requests whose results are discarded: the first steps alone where the rest would warm nothing."""
        if not self.engine_of_cell.keeps_nothing or self.cell.workload.arrives:
            # looks for requests that have not arrived count as rounds
            self.generate(conversations, on_round=on_round)
            return
        with first_steps(on_round) as ended_round:
            self.generate(conversations, on_round=ended_round)

    @property
    def start_note(self) -> str | None:
        """What it took to compile kernels and capture steps, once something has run; None where there was nothing."""
        return self._start_note

    def _arriving(self, conversations: Sequence[Conversation], start_s: float) -> list[Request]:
        """The first turns that fit, with their times of arrival where the workload has a rate."""
        requests, arrival_s = [], start_s
        for place, item in enumerate(conversations):
            request, rate = self.requests.first(item), self.cell.workload.rate_at(place)
            if rate is not None:
                arrival_s += item.gap_s(rate)
                request = request and replace(request, arrival_s=arrival_s)
            if request is not None:
                requests.append(request)
        return requests

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of an answer."""
        return decode_answer(self.requests.tokenizer, token_ids)

    def facts(self) -> Facts:
        """What the backend found out about its cell; called after it has generated."""
        target, engine = self.target, self.engine_of_cell
        of_head = () if self.loaded_head is None else self.loaded_head.head.assumptions
        shared_mass, num_shared_rows = engine.shared_mass
        return Facts(
            backend=replace(
                self.cell.local,
                device=target.device.type,
                dtype=str(target.dtype).removeprefix("torch."),
                fused=target.is_fused,
                graphs=engine.uses_graphs,
                compile=target.is_compiled and not self.cell.drafts_tree,
            ),
            models=self.weights(),
            sizes={
                "draft_logit_cache_bytes": engine.cache_bytes.draft_logits,
                "target_cache_bytes": engine.cache_bytes.target,
                "drafter_cache_bytes": engine.cache_bytes.drafter,
                "graph_bytes": engine.graph_bytes,
                "num_target_parameters": target.num_parameters,
                "num_drafter_parameters": engine.num_drafter_parameters,
            },
            fallbacks=self._fallbacks(),
            aux_layers=engine.aux_layers,
            drafter_positions=0 if self.loaded_head is None else self.loaded_head.num_positions,
            shared_mass=shared_mass,
            num_shared_rows=num_shared_rows,
            assumptions=by_role(target.assumptions, of_head),
            rounded_weights=target.rounded_weights,
            sampling_core=engine.sampling_core,
            draft_core=engine.draft_core,
        )

    def _fallbacks(self) -> tuple[str, ...]:
        """Everything so far that changed speed or results without being asked for."""
        head = () if self.loaded_head is None else self.loaded_head.head.fallbacks
        round_tokens = self.cell.backend.max_concurrency * (self.engine_of_cell.num_speculative_tokens + 1)
        notes = [*self.target.fallbacks, *self.target.round_fallbacks(round_tokens), *head, *self.requests.notes]
        if self.models.meta_models.target.is_uncounted:
            notes.append("the target's key-value cache is not counted in the memory that a run needs")
        constraint = self.cell.constraint
        if isinstance(constraint, GrammarConfig) and self.engine_of_cell.uses_graphs:
            is_masked = constraint.drafts is AnswerDrafts.masked and not self.cell.is_baseline
            notes.append(STEP_BY_STEP if is_masked else IN_PARTS)
        if self.target.device.type == "cpu":
            asked = {"graphs": self.engine_of_cell.uses_graphs, "fused": self.target.is_fused}
            notes += [text for name, text in ON_A_CPU.items() if asked[name]]
        if self.engine_of_cell.is_off_kernels:
            notes.append(f"verification.method={self.cell.verification.method.value}: reference core, no CUDA graphs")
        if self.cell.drafts_tree and self.target.is_compiled:
            notes.append(
                f"drafting.tree={self.cell.drafting.tree}: layers are not compiled, which they are for chains and the "
                "baseline (backend.compile)"
            )
        if self.cell.drafts_tree and self.target.device.type == "cuda":
            is_slower = {
                "no CUDA graphs": not self.engine_of_cell.uses_graphs,
                "no fused layers": not self.target.is_fused,
            }
            slower = ", ".join(name for name, holds in is_slower.items() if holds)
            notes += [f"drafting.tree={self.cell.drafting.tree}: {slower}"] if slower else []
        return tuple(notes)


class _Played:
    """Conversations while they are played: the answers so far, and the requests of those that have ended."""

    def __init__(self, conversations: Sequence[Conversation]) -> None:
        self._conversations = {(item.prompt.prompt_id, item.sample): item for item in conversations}
        self._answers: dict[tuple[str, int], list[str]] = {key: [] for key in self._conversations}
        self._ended: set[tuple[str, int]] = set()
        self._finished: list[tuple[RequestRecord, RequestTerms | None]] = []
        self._idle_s = 0.0

    def conversation(self, answer: Answer) -> Conversation:
        """That of an answer."""
        return self._conversations[answer.prompt_id, answer.sample]

    def answers(self, answer: Answer) -> list[str]:
        """The answers before, of the same conversation."""
        return self._answers[answer.prompt_id, answer.sample]

    def end(self, answer: Answer) -> None:
        """No turn comes after this answer."""
        self._ended.add((answer.prompt_id, answer.sample))

    def take_in(self, requests: Iterable[RequestRecord], terms: Sequence[RequestTerms], idle_s: float) -> None:
        """Remember finished requests until their conversations end, and the time that none of them took."""
        self._finished += zip_longest(requests, terms)
        self._idle_s += idle_s

    def ended(self) -> BackendRun:
        """The requests of the conversations that have ended, which are forgotten here."""
        ended = [item for item in self._finished if self._key(item[0]) in self._ended]
        self._finished = [item for item in self._finished if self._key(item[0]) not in self._ended]
        self._ended.clear()
        idle_s, self._idle_s = (self._idle_s, 0.0) if ended else (0.0, self._idle_s)
        num_turns = sum(len(self._conversations[key].prompt.turns) for key in {self._key(item) for item, _ in ended})
        return BackendRun(
            requests=tuple(item for item, _ in ended),
            wall_s=sum((each.share_s for item, _ in ended for each in item.rounds), idle_s),
            num_skipped_turns=num_turns - len(ended),
            terms=tuple(terms for _, terms in ended if terms is not None),
        )

    @staticmethod
    def _key(request: RequestRecord) -> tuple[str, int]:
        return request.prompt_id, request.sample


def _invalid(answer: Answer, drafter: DrafterKind | ImportPath) -> str:
    """The message for a request whose tokens mean nothing."""
    key = answer.prompt_id, answer.turn, answer.sample
    own = f"the logits of drafter.kind={drafter.value}, " if isinstance(drafter, ImportPath) else ""
    return (
        f"request (prompt, turn, sample) = {key}: expected finite logits and "
        "drafts that their distribution can have produced, found a row without a distribution (NaN, +inf or all "
        f"forbidden) or an impossible draft; check {own}the weights of target and drafter, and backend.dtype"
    )


class _IsWarm(Exception):
    """Ends a warm-up."""


@contextmanager
def first_steps(on_round: OnRound | None) -> Iterator[OnRound]:
    """Gives what to call after every round instead of `on_round`, and ends the block after the first steps."""
    num_ended = 0

    def ended_round() -> None:
        nonlocal num_ended
        if on_round is not None:
            on_round()
        num_ended += 1
        if num_ended == NUM_WARM_UP_STEPS:
            raise _IsWarm

    with suppress(_IsWarm):
        yield ended_round
