"""Launching steps: piece by piece as they come, or as CUDA graphs of a few fixed sizes.

On a GPU the launch of a graph returns at once; a launch piece by piece first waits for the last step, after which its
inputs are copied. The result is copied to the host after the step, and `Launched.decided` waits for that copy alone.
It does not know requests beyond their plan, limits or time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import cycle
from typing import NamedTuple

import torch
from torch import Tensor

from harness.engine.constraint.grammar_state import ConstraintOutcome, GrammarState
from harness.engine.inputs import in_pieces
from harness.engine.slots import DECODES, StepInputs
from harness.engine.step import Step, StepOutput
from harness.engine.step_plan import PrefillRoom, StepPlan


class Launched(NamedTuple):
    """A step under way."""

    output: StepOutput
    host: Tensor
    """Where `output.decided` arrives."""
    arrived: torch.cuda.Event | None
    """None where the step has ended before `launch` returned."""
    outcomes: Mapping[int, ConstraintOutcome] = {}
    """Outcomes of the constraints of the round, by slot."""
    grammar_states: Mapping[int, GrammarState] = {}
    """Grammar states by slot that have not seen what verification emitted; nothing is cut while a request goes on."""
    ran_as_one_graph: bool = False
    """The grammar states have not seen the drafts either; where they must, the device deferred the slot."""

    rest: Callable[[], Launched] | None = None
    """Launches the second half of the step, once all steps before it have been read; None where nothing is left."""

    def wait(self) -> None:
        """Wait until the result is on the host."""
        if self.arrived is not None:
            self.arrived.synchronize()

    def decided(self) -> list[list[int]]:
        """See StepOutput; waits for it."""
        self.wait()
        return self.host.tolist()


STEPS_UNDER_WAY = 2
"""The one that is read and the one launched after it."""


class Results:
    """Where the results of steps arrive on the host: pinned memory and an event for each step under way, used in turn.

    Only the first step of a shape asks for them.
    """

    def __init__(self) -> None:
        self._places: dict[torch.Size, Iterator[tuple[Tensor, torch.cuda.Event]]] = {}

    def fetch(self, output: StepOutput) -> Launched:
        """Copy a step's result to the host after everything launched so far.

        It stays there until STEPS_UNDER_WAY more have been fetched.
        """
        decided = output.decided
        if not decided.is_cuda:
            return Launched(output, decided, None)
        if decided.shape not in self._places:
            places = [
                (torch.empty(decided.shape, dtype=decided.dtype, pin_memory=True), torch.cuda.Event())
                for _ in range(STEPS_UNDER_WAY + 1)
            ]
            self._places[decided.shape] = cycle(places)
        host, arrived = next(self._places[decided.shape])
        host.copy_(decided, non_blocking=True)
        arrived.record()
        return Launched(output, host, arrived)


class EagerRunner:
    """Every operation on its own, at the sizes the plan has."""

    max_prefill_tokens = 4096
    """Prompt tokens that a step can read, unless a single prompt is longer; bounds the memory of activations."""
    graph_bytes = 0
    """Memory that captured steps took."""

    def __init__(self, step: Step) -> None:
        assert not step.joins
        self.step = step
        self._results = Results()

    def prepare(self) -> None:
        """Nothing is needed."""

    def rehearse_on_meta(self) -> None:
        """Nothing is known before a step."""

    def prefill_room(self, depth: int | None) -> PrefillRoom:
        """Of a step: prompts are read in one piece, and beside rounds without a limit.

        Prompts have a forward of their own here, and every portion would read the weights once more.
        """
        return PrefillRoom(self.max_prefill_tokens, group_tokens=0)

    def launch(self, plan: StepPlan) -> Launched:
        return self._results.fetch(self.step(self.inputs(plan)))

    def launch_rounds(self, num_slots: int, depth: int, length: int) -> Launched:
        """Launch a step in which the first slots, of so many tokens each, decode whatever they hold."""
        fields = torch.zeros(5, num_slots, dtype=torch.int64)
        fields[0] = DECODES
        return self._results.fetch(
            self.step(StepInputs(fields.to(self.step.target.device), (), length + depth, True, depth))
        )

    def inputs(self, plan: StepPlan) -> StepInputs:
        """The step's inputs on its device."""
        step = self.step
        depth = step.num_speculative_tokens if plan.depth is None else plan.depth
        return in_pieces(plan, depth, self.max_prefill_tokens, step.target.device, not step.is_recurrent)
