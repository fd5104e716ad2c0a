"""The local engine: steps that read prompts and decode rounds of all running requests, until all have ended.

The autoregressive baseline is the same engine with a drafter that proposes nothing. The engine knows token ids, slots
and time; it does not know text, configurations or files. Batch composition does not reach the random streams: they are
functions of a request's seed, position and own round count.

With CUDA graphs the next step is launched before the last one has been read, so that the host's work is hidden behind
the device's. A request that ended in the step just read is then in the next one too; what that step made of it is
thrown away and counted nowhere. A request in whose round reasoning may end is deferred by the device: the step decides
nothing of it, and the host takes part in the next one. Where the engine also measures what the methods expect on the
drafts, it works one step after another: it looks at a step's drafts and logits, the clock stopped, before the next one
overwrites them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import torch

from harness.constraint.outcome import ConstraintOutcome
from harness.drafters.protocol import Drafter
from harness.engine.acceptance_terms import of_slot, term_columns
from harness.engine.constrained_graph_runner import ConstrainedGraphRunner
from harness.engine.constrained_runner import ConstrainedRunner
from harness.engine.constrained_step import CUT_TOO_LATE, after_unmasked_round, apply_constraints
from harness.engine.graph_runner import GraphRunner
from harness.engine.request import Answer, Limits, Request
from harness.engine.runner import EagerRunner, Launched, Runner
from harness.engine.scheduler import Scheduler
from harness.engine.sequence import Round, Sequence, rounds_of
from harness.engine.slots import SlotState
from harness.engine.step import Step
from harness.engine.step_plan import StepPlan, make_plan
from harness.engine.to_records import request_record, request_terms
from harness.models.target import TargetModel
from harness.records.acceptance_terms import Floats, RequestTerms
from harness.records.schema import RequestRecord
from kernels.contract import Sampling, Verification
from kernels.core import Core, core_for
from kernels.equal_sampling import equal_sampling
from kernels.reference.acceptance import acceptance_terms, expected_accepted


@dataclass(frozen=True)
class SamplingSettings:
    """The sampling parameters that all requests of an engine share; see kernels.contract.Sampling."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    def rows(self, num_rows: int, device: torch.device) -> Sampling:
        return equal_sampling(num_rows, self.temperature, self.top_k, self.top_p, self.min_p, device)


@dataclass(frozen=True)
class EngineSettings:
    """What an engine is built for."""

    num_slots: int
    capacity: int
    """Tokens a slot holds: prompt, output, and `draft_slack`."""
    num_speculative_tokens: int
    sampling: SamplingSettings
    verification: Verification
    limits: Limits
    expected_acceptance: bool = False
    """Compute, per round, the acceptance that each chain method expects on the same drafts."""
    round_terms: bool = False
    """Beside it keep the terms of every full draft, for a replay."""
    graphs: bool = False
    """Steps of a few fixed sizes, captured as CUDA graphs where there is a GPU; else operation by operation."""
    overlaps: bool | None = None
    """Launch a step before the one before it has been read; None does so where a launch does not wait for the device:
    with CUDA graphs on a GPU. Never with `expected_acceptance`, nor where it is `constrained` without `graphs`."""
    constrained: bool = False
    """Requests may have grammar states, so that the host may take part in steps; those of others run as without."""
    prompt_tokens_beside_rounds: int | None = None
    """Prompt tokens of a step in which others decode, at most, in whole rows and at least one; None for no limit. With
    `graphs` only: without them prompts have a forward of their own. Moves tokens by rounding alone."""


def draft_slack(num_speculative_tokens: int) -> int:
    """Tokens that a slot must hold beyond prompt and output: two rounds that may both turn out to be too many."""
    return 2 * (num_speculative_tokens + 1)


@dataclass(frozen=True)
class EngineRun:
    """The requests in the order they finished, and how long it took."""

    requests: tuple[RequestRecord, ...]
    wall_s: float
    num_invalid: int
    """Verifications that met a row without a distribution, or a draft token its distribution cannot have produced."""
    terms: tuple[RequestTerms, ...] = ()
    """Of the requests, in the same order; empty unless they are recorded."""


class _Measures(NamedTuple):
    """What was measured on a step's drafts, per slot."""

    expected: list[list[float]]
    terms: dict[str, Floats] | None


class _UnderWay(NamedTuple):
    """A step that has been launched and not read yet."""

    plan: StepPlan
    launched: Launched
    measures: _Measures | None
    """If it has been measured."""


FollowUp = Callable[[Answer], Request | None]
Measured = TypeVar("Measured")


class Engine:
    """Runs requests through one target and one drafter."""

    def __init__(
        self, target: TargetModel, drafter: Drafter, settings: EngineSettings, core: Core | None = None
    ) -> None:
        """core: None takes the sampling core of the target's device."""
        self.target = target
        self.drafter = drafter
        self.settings = settings
        self.core = core if core is not None else core_for(target.device)
        self._measures = settings.expected_acceptance and settings.num_speculative_tokens > 0
        returns_at_once = target.device.type == "cuda" and settings.graphs
        wanted = returns_at_once if settings.overlaps is None else settings.overlaps
        self._overlaps = wanted and not self._measures and (settings.graphs or not settings.constrained)
        # one slot more than there are takes what nobody wants
        self._cache = target.new_cache(settings.num_slots + 1, settings.capacity)
        self.step = Step(
            target=target,
            drafter=drafter,
            core=self.core,
            cache=self._cache,
            state=SlotState(settings.num_slots, settings.capacity, target.device),
            sampling=settings.sampling.rows(settings.num_slots, target.device),
            verification=settings.verification,
            num_speculative_tokens=settings.num_speculative_tokens,
            joins=settings.graphs,
        )
        self._runner = self._new_runner()
        self._num_invalid = 0
        self._began = 0.0
        self._read_s = 0.0

    def _new_runner(self) -> Runner:
        step, num_slots = self.step, self.settings.num_slots
        if not self.settings.graphs:
            return ConstrainedRunner(step, num_slots) if self.settings.constrained else EagerRunner(step)
        limit = self.settings.prompt_tokens_beside_rounds
        return (ConstrainedGraphRunner if self.settings.constrained else GraphRunner)(step, num_slots, limit)

    @property
    def cache_bytes(self) -> int:
        """Memory of the target's key-value cache."""
        return self._cache.num_bytes

    @property
    def graph_bytes(self) -> int:
        """Memory of the steps captured as CUDA graphs, once something was run; 0 without them."""
        return self._runner.graph_bytes

    @torch.inference_mode()
    def run(self, requests: Iterable[Request], follow_up: FollowUp, start_s: float = 0.0) -> EngineRun:
        """Run all requests and their follow-ups to the end.

        Args:
            requests: in the order of admission; where they arrive one by one, in that of their arrival.
            follow_up: called with each finished request, while the clock runs; may return the next turn of its
                conversation.
            start_s: what the clock of the records shows at the start.
        """
        self._runner.prepare()
        self._began = time.perf_counter() - start_s
        self._num_invalid, self._read_s = 0, start_s
        scheduler = Scheduler(self.settings.num_slots, requests)
        finished: list[Sequence] = []
        under_way: _UnderWay | None = None
        while not scheduler.is_done:
            scheduler.admit(self._now())
            launched = None if under_way and self._must_wait(scheduler) else self._launch(scheduler)
            if not self._overlaps and launched is not None:
                under_way, launched = self._measured(launched), None
            if under_way is not None:
                self._take_in(under_way, scheduler, finished, follow_up)
            elif launched is None:
                self._idle(scheduler.seconds_to_wait(self._now()))
            under_way = launched
        wall_s = self._now() - start_s
        if under_way is not None:
            # nobody needs it, and its time must not be the next run's
            under_way.launched.wait()
        # made now, so that they take no time of the run
        records = tuple(request_record(item) for item in finished)
        terms = tuple(request_terms(item) for item in finished) if self.settings.round_terms else ()
        return EngineRun(records, wall_s, self._num_invalid, terms)

    def _now(self) -> float:
        return time.perf_counter() - self._began

    def _idle(self, seconds: float) -> None:
        """Wait for the next request; time without one is nobody's share."""
        time.sleep(seconds)
        self._read_s = self._now()

    def _unclocked(self, measure: Callable[[], Measured]) -> Measured:
        """Do something that a measurement needs and decoding does not, while the clock stands still.

        Nothing else may be under way on the device.
        """
        stopped = time.perf_counter()
        result = measure()
        self._began += time.perf_counter() - stopped
        return result

    def _must_wait(self, scheduler: Scheduler) -> bool:
        """Whether the next step needs the host's answer to the one under way.

        So it is too where the host takes part in the one under way: who needed it there does until that is read.
        """
        return any(item.needs_host for item in scheduler.constrained.values())

    def _launch(self, scheduler: Scheduler) -> _UnderWay | None:
        """Launch the next step, if there is one to launch."""
        runner, limits = self._runner, self.settings.limits
        plan = make_plan(
            scheduler.running.values(),
            limits,
            runner.max_prefill_tokens,
            runner.row_width,
            runner.max_prefill_tokens_with_decodes,
            may_be_constrained=bool(scheduler.constrained),
        )
        if plan is None:
            return None
        launched = runner.launch(plan)
        for chunk in plan.chunks:
            chunk.sequence.num_prefilled_tokens = chunk.stop
            if chunk.ends_prompt:
                chunk.sequence.launch(1)
        for sequence in plan.decoding:
            sequence.launch(self.settings.num_speculative_tokens + 1)
        return _UnderWay(plan, launched, None)

    def _measured(self, under_way: _UnderWay) -> _UnderWay:
        """The same with what is measured on its drafts, if anything is asked for."""
        if not self._measures or not under_way.plan.decoding:
            return under_way
        under_way.launched.wait()
        output = under_way.launched.output
        num_slots = output.draft.num_draft_tokens.numel()

        def measure() -> _Measures:
            sampling = self.settings.sampling.rows(num_slots, output.logits.device)
            keeps = self.settings.round_terms
            terms = acceptance_terms(output.logits, output.draft, sampling, with_masses=keeps)
            rule, drawn_rows = self.settings.verification, self.drafter.drawn_rows
            columns = term_columns(terms, output, sampling, rule, drawn_rows) if keeps else {}
            kept = {name: column.cpu().numpy() for name, column in columns.items()}
            return _Measures(expected_accepted(terms, output.draft).tolist(), kept if keeps else None)

        return under_way._replace(measures=self._unclocked(measure))

    def _take_in(
        self, under_way: _UnderWay, scheduler: Scheduler, finished: list[Sequence], follow_up: FollowUp
    ) -> None:
        """Wait for a step, commit what it decided, and let go of the requests that ended."""
        plan, rows = under_way.plan, under_way.launched.decided()
        now = self._now()
        going_on = [sequence for sequence in plan.participants if sequence.finish_reason is None]
        if not going_on:
            return
        share_s = (now - self._read_s) / len(going_on)
        self._read_s = now
        deciding = [sequence for sequence in plan.deciding if sequence.finish_reason is None]
        slots = [sequence.slot for sequence in deciding]
        decided = rounds_of(rows, self.settings.num_speculative_tokens, slots)
        outcomes = _outcomes(under_way.launched, decided)
        for sequence in going_on:
            if sequence.slot not in decided:
                sequence.carry(share_s)
                continue
            round_ = decided[sequence.slot]
            if round_.is_deferred:
                sequence.defer(share_s)
                continue
            outcome = outcomes.get(sequence.slot)
            if under_way.measures is not None and (outcome is None or not outcome.is_masked):
                # what is measured holds for drafts and rows without masks
                round_ = _with_measures(round_, under_way.measures, sequence.slot)
            sequence.append_round(round_, outcome, self.settings.limits, now, share_s)
            self._num_invalid += round_.is_invalid
        self._retire([item for item in going_on if item.finish_reason is not None], scheduler, finished, follow_up)

    def _retire(
        self, ended: list[Sequence], scheduler: Scheduler, finished: list[Sequence], follow_up: FollowUp
    ) -> None:
        for sequence in ended:
            finished.append(sequence)
            if sequence.has_nan:
                # masking does not hide a NaN from the slot's next request: its weight is 0, and 0 times NaN is NaN
                self._cache.clear(slice(sequence.slot, sequence.slot + 1))
                self.drafter.clear(sequence.slot)
            scheduler.release(sequence, follow_up(sequence.answer))


def _outcomes(launched: Launched, rounds: Mapping[int, Round]) -> Mapping[int, ConstraintOutcome]:
    """What constraints say of a step, by slot."""
    if not launched.grammar_states:
        return launched.outcomes
    decided = [slot for slot, item in rounds.items() if not item.is_deferred]
    grammar_states = {slot: launched.grammar_states[slot] for slot in decided if slot in launched.grammar_states}
    if launched.ran_as_one_graph:
        return after_unmasked_round(grammar_states, rounds)
    outcomes, cuts = apply_constraints(grammar_states, rounds)
    assert all(outcomes[slot].is_complete for slot in cuts), CUT_TOO_LATE
    return outcomes


def _with_measures(round_: Round, measures: _Measures, slot: int) -> Round:
    if not round_.draft_ids:
        return round_
    strict, probabilistic, block = measures.expected[slot]
    terms = None if measures.terms is None else of_slot(measures.terms, slot, len(round_.draft_ids))
    return round_._replace(expected_accepted=(strict, probabilistic, block), terms=terms)
