"""The local engine: steps that read prompts and decode rounds of all running requests, until all have ended.

The autoregressive baseline is the same engine with a drafter that proposes nothing. The engine knows token ids, slots
and time; it does not know text, configurations or files. Batch composition does not reach the random streams: they are
functions of a request's seed, position and own round count.

With CUDA graphs the next step is launched before the last one has been read, which hides the host's work behind the
device's. A request that ended in the step just read is then in the next one too; its output there is discarded and
counted nowhere. The device defers a request in whose round reasoning may end: the step decides nothing of it, and the
host takes part in the next one. Where expected acceptance is measured, the rows of a step are set aside before the next
one overwrites them, and read with the clock stopped (see measuring.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial

import torch

from harness.drafters.protocol import Drafter, KeepsTexts, MovesSlots, forget_requests
from harness.engine.calibrate import measure_step_times
from harness.engine.choose_runner import new_runner
from harness.engine.decided_step import DecidedStep
from harness.engine.depth import Depth, learn_from
from harness.engine.gc_pause import gc_paused
from harness.engine.measuring import Measuring
from harness.engine.request import Answer, Request
from harness.engine.scheduler import Scheduler
from harness.engine.sequence import Sequence
from harness.engine.settings import EngineSettings
from harness.engine.slot_edits import SlotEdits
from harness.engine.slots import SlotSampling, SlotState
from harness.engine.step import Step
from harness.engine.step_plan import StepPlan, make_plan
from harness.engine.to_records import EngineRun, Finished, Keeping
from harness.engine.tree_step import TreeStep
from harness.engine.under_way import UnderWay, completed
from harness.models.target import TargetModel
from kernels.core import Core, core_for

FollowUp = Callable[[Answer], Request | None]
LOOK_S = 0.1
"""How often an idle engine is asked whether it shall end."""


class Engine:
    """Runs requests through one target and one drafter."""

    def __init__(
        self,
        target: TargetModel,
        drafter: Drafter,
        settings: EngineSettings,
        core: Core | None = None,
        depth: Depth | None = None,
    ) -> None:
        """core: None takes the sampling core of the target's device. depth: None drafts K tokens in every round."""
        self.target, self.drafter, self.settings = target, drafter, settings
        self.core = core if core is not None else core_for(target.device)
        sampling = SlotSampling(settings, target.device)
        returns_at_once = target.device.type == "cuda" and settings.graphs
        wanted = returns_at_once if settings.overlaps is None else settings.overlaps
        self._overlaps = wanted and (settings.graphs or not settings.constrained)
        # one spare slot receives the writes of padding rows
        rewind = settings.num_speculative_tokens + 1
        self._cache = target.new_cache(settings.num_slots + 1, settings.capacity, rewind)
        step = Step(
            target=target,
            drafter=drafter,
            core=self.core,
            cache=self._cache,
            state=SlotState(settings.num_slots, settings.capacity, sampling, target.device, _edits(settings, target)),
            verification=settings.verification,
            num_speculative_tokens=settings.num_speculative_tokens,
            logprobs=settings.logprobs,
            joins=settings.graphs,
            own_drafter=settings.own_drafter,
        )
        self.step = TreeStep.of(step) if settings.drafts_trees else step
        self._by_slot: tuple[MovesSlots, ...] = ()
        """What is kept of slots; empty where they do not move, since steps of fixed sizes compute empty ones anyway."""
        if not settings.graphs and not self._overlaps and isinstance(drafter, MovesSlots):
            self._by_slot = (self.step.state, self._cache, drafter)
        # asked once: to look for the method takes as long as fifty calls
        self._keeper = drafter if isinstance(drafter, KeepsTexts) else None
        self._measuring = Measuring.of(self.step, settings, self._overlaps)
        self._depth = depth
        self._runner = new_runner(self.step, settings, depth)
        self._num_invalid, self._began, self._read_s = 0, 0.0, 0.0

    @property
    def cache_bytes(self) -> int:
        """Memory of the target's key-value cache."""
        return self._cache.num_bytes

    @property
    def graph_bytes(self) -> int:
        """Memory of the steps captured as CUDA graphs, once something was run; 0 without them."""
        return self._runner.graph_bytes

    @torch.inference_mode()
    def rehearse_on_meta(self) -> None:
        """Launch on the meta device, where nothing is computed, what `prepare` launches on a GPU."""
        self._runner.rehearse_on_meta()

    @torch.inference_mode()
    def prepare(self) -> None:
        """Capture the steps of fixed sizes that are missing, and measure the times that its depth is chosen by."""
        self._runner.prepare()
        if self._depth is not None:
            self._depth.prepare(partial(measure_step_times, self._runner))

    @torch.inference_mode()
    @gc_paused()
    def run(
        self,
        requests: Iterable[Request],
        follow_up: FollowUp,
        start_s: float = 0.0,
        keeping: Keeping | None = None,
        on_round: Callable[[], None] | None = None,
    ) -> EngineRun:
        """Run all requests and their follow-ups to the end.

        Args:
            requests: in the order of admission; where they arrive one by one, in that of their arrival.
            follow_up: called with each finished request, while the clock runs; may return its conversation's next turn.
            start_s: seconds on the records' clock at the start.
            keeping: gets finished requests early.
            on_round: called after every step, and now and then while nothing is under way; what it raises ends the run.
        """
        self.prepare()
        self._began = time.perf_counter() - start_s
        self._num_invalid, self._read_s = 0, start_s
        scheduler = Scheduler(self.settings.num_slots, requests, self.settings.sampling.min_tokens)
        self._measuring.forget()
        forget_requests(self.drafter)
        finished = Finished(self.settings.round_terms, keeping, start_s, self._measuring.measure)
        with finished.kept_on_interruption():
            under_way = self._run(scheduler, finished, follow_up, on_round or (lambda: None))
        if under_way is not None:
            # its output is discarded, but the device is busy with it
            under_way.launched.wait()
        wall_s = self._now() - start_s
        # records are made now, so that they take no time of the run
        return finished.results(wall_s, self._num_invalid)

    def _run(
        self, scheduler: Scheduler, finished: Finished, follow_up: FollowUp, on_round: Callable[[], None]
    ) -> UnderWay | None:
        """Run until all requests have finished; returns the step that was launched in vain."""
        under_way: UnderWay | None = None
        while not scheduler.is_done:
            scheduler.admit(self._now())
            if self._by_slot:
                self._close_gaps(scheduler)
            launched = None if under_way and self._must_wait(under_way.plan, scheduler) else self._launch(scheduler)
            if under_way is None:
                launched = completed(launched)
            if not self._overlaps and launched is not None:
                under_way, launched = self._with_drafts(launched), None
            if under_way is not None:
                launched = completed(self._take_in(under_way, launched, scheduler, finished, follow_up))
            elif launched is None:
                finished.idle_s += self._idle(scheduler.seconds_to_wait(self._now()))
            under_way = None if launched is None else self._with_drafts(launched)
            if finished.is_due(self._now()):
                self._keep(finished, under_way)
            on_round()
        return under_way

    def _keep(self, finished: Finished, under_way: UnderWay | None) -> None:
        """Hand over what has finished since the last time, the device idle and the clock stopped."""
        self._clock_stopped(under_way, lambda: finished.keep(self._now()))

    def _clock_stopped(self, under_way: UnderWay | None, call: Callable[[], None]) -> None:
        """Wait for the device, and call something with the clock stopped."""
        if under_way is not None:
            under_way.launched.wait()
        stopped = time.perf_counter()
        call()
        self._began += time.perf_counter() - stopped

    def _now(self) -> float:
        return time.perf_counter() - self._began

    def _idle(self, seconds: float) -> float:
        """Wait for the next request, for `LOOK_S` at most; returns the idle time, which no request is charged with."""
        time.sleep(min(seconds, LOOK_S))
        before, self._read_s = self._read_s, self._now()
        return self._read_s - before

    def _must_wait(self, under_way: StepPlan, scheduler: Scheduler) -> bool:
        """Whether the next step cannot begin before the one under way was read.

        It draws under masks, whose places are not known yet; or the host takes part in the one under way alone, so that
        reasoning may have ended there without the device knowing.
        """
        if not _needs_host(scheduler):
            return under_way.needs_host
        if not self.settings.num_speculative_tokens:
            return False
        states = (item.request.grammar_state for item in scheduler.constrained.values())
        return any(state is not None and state.masks_drafts for state in states)

    def _launch(self, scheduler: Scheduler) -> UnderWay | None:
        """Launch the next step, if there is one to launch."""
        runner = self._runner
        plan = make_plan(
            scheduler.running.values(),
            self.settings.limits,
            runner.prefill_room,
            None if self._depth is None else self._depth.choose,
            may_be_constrained=bool(scheduler.constrained),
            needs_host=_needs_host(scheduler),
        )
        if plan is None:
            return None
        begun = {chunk.sequence.slot: chunk.sequence.request.sampling for chunk in plan.chunks if chunk.start == 0}
        self.step.state.write(begun)
        if self._keeper is not None:
            for slot in begun:
                self._keeper.begin(slot)
        launched = runner.launch(plan)
        for chunk in plan.chunks:
            chunk.sequence.num_prefilled_tokens = chunk.stop
            if chunk.ends_prompt:
                chunk.sequence.launch(1)
        max_tokens = (self.settings.num_speculative_tokens if plan.depth is None else plan.depth) + 1
        for sequence in plan.decoding:
            sequence.launch(max_tokens)
        return UnderWay(plan, launched)

    def _with_drafts(self, under_way: UnderWay) -> UnderWay:
        """The same with its drafts, which the next step may overwrite, if they are measured."""
        if not under_way.plan.decoding or under_way.plan.depth == 0:
            return under_way
        drafts = self._measuring.keep(under_way.launched.output)
        if self._measuring.is_due:
            self._clock_stopped(under_way, self._measuring.measure)
        return under_way._replace(drafts=drafts)

    def _take_in(
        self, step: UnderWay, launched: UnderWay | None, scheduler: Scheduler, finished: Finished, follow_up: FollowUp
    ) -> UnderWay | None:
        """Commit what a step decided, release what ended; returns the next step, completed where it need not wait."""
        plan, rows = step.plan, step.launched.decided()
        now = self._now()
        deciding = [sequence for sequence in plan.deciding if sequence.finish_reason is None]
        reading = [chunk.sequence for chunk in plan.chunks if not chunk.ends_prompt]
        num_going_on = len(deciding) + len(reading)
        if not num_going_on:
            return launched
        share_s = (now - self._read_s) / num_going_on
        self._read_s = now
        decided = DecidedStep(step, rows, deciding, self.settings)
        if not self.settings.num_speculative_tokens and decided.is_valid:
            # before the host commits, since the device waits for it; output of a request that ends here is discarded.
            # With drafts the host commits while they are drawn
            launched = completed(launched)
        self._num_invalid += decided.commit(self.settings.limits, now, share_s)
        for sequence in reading:
            sequence.carry(share_s)
        if self._depth is not None:
            learn_from(self._depth, plan, decided.num_accepted, share_s * num_going_on)
        self._retire([item for item in deciding if item.finish_reason is not None], scheduler, finished, follow_up)
        return launched

    def _close_gaps(self, scheduler: Scheduler) -> None:
        """Let the running requests have the lowest slots; no step is under way."""
        for sequence, left in scheduler.close_gaps():
            for part in self._by_slot:
                part.move(left, sequence.slot)
            if sequence.has_nan:
                self._clear(left)

    def _clear(self, slot: int) -> None:
        """Masking does not hide a NaN from a slot's next request: its weight is 0, and 0 times NaN is NaN."""
        self._cache.clear(slice(slot, slot + 1))
        self.drafter.clear(slot)

    def _retire(self, ended: list[Sequence], scheduler: Scheduler, finished: Finished, follow_up: FollowUp) -> None:
        for sequence in ended:
            finished.sequences.append(sequence)
            if sequence.has_nan:
                self._clear(sequence.slot)
            scheduler.release(sequence, follow_up(sequence.answer))


def _edits(settings: EngineSettings, target: TargetModel) -> SlotEdits | None:
    """What changes the target rows of the slots; None where no request has any of it."""
    given, of_default = settings.num_fixed_tokens, settings.sampling
    if given is None and not of_default.edits:
        return None
    num_fixed = max(given or 0, of_default.num_fixed_tokens(settings.limits.eos_token_ids))
    return SlotEdits(settings, num_fixed, target.device)


def _needs_host(scheduler: Scheduler) -> bool:
    """Whether some request needs the host in its next round."""
    return any(item.needs_host for item in scheduler.constrained.values())
