"""Steps whose requests may have guards, as two CUDA graphs each: up to the target's logits, and the rest.

While nobody is behind the boundary, the host looks at the drafts when the target's forward is still running, and
launches the rest behind it: the drafts are copied beside the forward, with a ticket that says of which launch they are.
So the device does not wait, and the next step can be launched ahead. Only the rare step whose drafts hold the end of
reasoning, or that somebody behind it takes part in, runs its rest, or all of it, operation by operation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from harness.engine.graph_runner import GraphRunner, StepSize, _Captured
from harness.engine.guarded_step import GuardedStep, drafting_slots, guards_of
from harness.engine.plan import Plan
from harness.engine.runner import Begun, Launched, fetch
from harness.engine.slots import StepInputs
from harness.engine.step import Drafted, Scored, Step, StepOutput

POLLS_PER_CHECK = 4096
"""Looks at the host's memory between two questions whether the device is still sound."""


@dataclass
class _Halves:
    """A captured step in two halves."""

    given: StepInputs
    begin: Callable[[], tuple[Drafted, Scored]]
    """Drafts and scores, and shows the drafts to the host; returns what is left for the second half."""
    end: Callable[[], StepOutput]
    shown: Tensor
    """[B, K + 2] int64 on the host: drafts, how many, and the ticket of the launch."""
    num_launches: int = 0


class GuardedGraphRunner(GraphRunner):
    """Launches the first half of a step; `Begun.finish` does the rest."""

    def __init__(self, step: Step, num_slots: int) -> None:
        super().__init__(step, num_slots)
        self._guarded = GuardedStep(step, num_slots)
        self._halves: dict[StepSize, _Halves] = {}

    def launch(self, plan: Plan) -> Launched | Begun:
        self._take_in(plan)
        halves = self._halves[self._size(plan)]
        if any(guard.is_behind for guard in guards_of(plan).values()):
            return self._guarded.run(plan, halves.given)
        drafted, scored = halves.begin()
        halves.num_launches += 1
        return Begun(lambda: self._finish(plan, halves, drafted, scored))

    def _finish(self, plan: Plan, halves: _Halves, drafted: Drafted, scored: Scored) -> Launched:
        """Look at the drafts, and launch what follows them."""
        # requests that ended in the step before are still in the plan, and nobody asks about them
        guards, drafting = guards_of(plan), drafting_slots(plan)
        rows = _shown(halves)
        drafts, counts = [row[:-2] for row in rows], [row[-2] for row in rows]
        worthwhile = list(counts)
        self._guarded.masks.clear()
        masks = self._guarded.look_ahead(guards, drafting, worthwhile, drafts)
        is_free = self._guarded.masks.num_masks == 0 and worthwhile == counts
        if is_free and not any(guard.may_cut for guard in guards.values()):
            return fetch(halves.end())._replace(guards=guards)
        return self._guarded.verify(halves.given, drafted, scored, guards, worthwhile, masks)

    def _capture(self, size: StepSize) -> _Captured:
        inputs, given = self._new_inputs(size)
        halves = self._captured_halves(given) if inputs.is_cuda else self._plain_halves(given)
        self._halves[size] = halves

        def run() -> StepOutput:
            halves.begin()
            return halves.end()

        return _Captured(inputs, run)

    def _plain_halves(self, given: StepInputs) -> _Halves:
        """The same without graphs."""
        step = self.step
        left: list[tuple[Drafted, Scored]] = []
        shown = torch.zeros(given.decides.numel(), step.num_speculative_tokens + 2, dtype=torch.int64)
        ticket = torch.zeros(1, dtype=torch.int64)

        def begin() -> tuple[Drafted, Scored]:
            ticket.add_(1)
            drafted = step.draft(given)
            shown.copy_(_for_the_host(drafted, ticket))
            left[:] = [(drafted, step.score(given, drafted))]
            return left[0]

        def end() -> StepOutput:
            return _end(step, given, *left[0])

        return _Halves(given, begin, end, shown)

    def _captured_halves(self, given: StepInputs) -> _Halves:
        step = self.step
        # kernels are compiled and scratch memory grows outside of the capture
        step(given)
        shown = torch.zeros(given.decides.numel(), step.num_speculative_tokens + 2, dtype=torch.int64, pin_memory=True)
        ticket = torch.zeros(1, dtype=torch.int64, device=given.slots.device)
        beside = torch.cuda.Stream()
        torch.cuda.synchronize()
        first, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(first, pool=self._pool):
            ticket.add_(1)
            drafted = step.draft(given)
            for_the_host = _for_the_host(drafted, ticket)
            beside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(beside):
                shown.copy_(for_the_host, non_blocking=True)
            scored = step.score(given, drafted)
            torch.cuda.current_stream().wait_stream(beside)
        self._pool = first.pool()
        with torch.cuda.graph(second, pool=self._pool):
            output = _end(step, given, drafted, scored)
        # its memory must not be another's before the copy beside the forward has read it
        kept = for_the_host

        def begin() -> tuple[Drafted, Scored]:
            assert kept is not None
            first.replay()
            return drafted, scored

        def end() -> StepOutput:
            second.replay()
            return output

        return _Halves(given, begin, end, shown)


def _end(step: Step, given: StepInputs, drafted: Drafted, scored: Scored) -> StepOutput:
    """Everything behind the target's logits, without the host."""
    verified = step.verify(given, drafted, scored)
    step.extend(given, scored, verified)
    return step.commit(scored, verified)


def _for_the_host(drafted: Drafted, ticket: Tensor) -> Tensor:
    """[B, K + 2]; the ticket comes last in every row, so that a row with the right one has arrived."""
    draft = drafted.draft
    counts = draft.num_draft_tokens.unsqueeze(1)
    return torch.cat([draft.token_ids, counts, ticket.expand_as(counts)], dim=1)


def _shown(halves: _Halves) -> list[list[int]]:
    """The drafts of the last launch, once they are there."""
    tickets, num_polls = halves.shown.numpy()[:, -1], 0
    while not (tickets == halves.num_launches).all():
        num_polls += 1
        if num_polls % POLLS_PER_CHECK == 0:
            # raises what went wrong on the device
            torch.cuda.current_stream().query()
    found: list[list[int]] = halves.shown.tolist()
    return found
