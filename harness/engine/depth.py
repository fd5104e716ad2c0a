"""How many tokens the rounds of the next step draft.

The host decides before the step begins, from steps that it has read: the depth depends on no draft that it leaves out,
so lossless methods stay lossless (kernels.depth). This module does not know tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from harness.config.depth import DepthTable, depth_at
from harness.config.step_times import StepTimes
from harness.engine.step_plan import StepPlan


class Depth(Protocol):
    """Chooses the depth of every step of an engine."""

    def prepare(self, measure: Callable[[Sequence[int]], StepTimes]) -> None:
        """Get ready before the clock starts.

        Args:
            measure: measures steps of some depths, at every batch size of the engine's.
        """
        ...

    def choose(self, num_requests: int) -> int:
        """Drafts of each round of the next step, in which `num_requests` (1 or more) decode."""
        ...

    def choices(self, num_requests: int) -> Collection[int]:
        """What `choose` may return while at most `num_requests` decode."""
        ...

    def learn(
        self, num_requests: int, depth: int, num_accepted: Sequence[int], seconds: float, num_prompt_tokens: int
    ) -> None:
        """Learn from a step that was read.

        Args:
            num_requests: that decoded in it.
            depth: of its rounds.
            num_accepted: drafts that each of its rounds accepted, of those rounds that did not end their request.
            seconds: that it took.
            num_prompt_tokens: that it read too.
        """
        ...


class DepthByBatch:
    """Takes the depth from a table of batch sizes."""

    def __init__(self, table: DepthTable) -> None:
        self._table = table

    def prepare(self, measure: Callable[[Sequence[int]], StepTimes]) -> None:
        """A table needs no preparation."""

    def learn(
        self, num_requests: int, depth: int, num_accepted: Sequence[int], seconds: float, num_prompt_tokens: int
    ) -> None:
        """A table does not learn."""

    def choose(self, num_requests: int) -> int:
        return depth_at(self._table, num_requests)

    def choices(self, num_requests: int) -> set[int]:
        return {depth for size, depth in self._table if size <= num_requests}


def learn_from(depth: Depth, plan: StepPlan, num_accepted: Mapping[int, int], seconds: float) -> None:
    """Let what chooses depths learn from a step that was read and committed.

    Args:
        depth: chose the depth of `plan`.
        plan: of the step.
        num_accepted: drafts that its rounds accepted, by slot, of those that it decided.
        seconds: since the step before was read.
    """
    if plan.depth is None:
        return
    # a round that ends its request may have been cut
    going_on = [sequence for sequence in plan.decoding if sequence.finish_reason is None]
    accepted = [num_accepted[sequence.slot] for sequence in going_on if sequence.slot in num_accepted]
    num_prompt_tokens = sum(chunk.stop - chunk.start for chunk in plan.chunks)
    depth.learn(len(plan.decoding), plan.depth, accepted, seconds, num_prompt_tokens)
