"""Engines whose depth is decided step by step, by the objects that decide it in harness.engine.

The slots of a table belong to engines of SLOTS_OF_STEP slots each. As in the engine, the step in which a request begins
ends its prompt: it decides one token without drafts and is no round. All others that are under way decode, and the
engine's `Depth` chooses how many drafts their rounds verify, from the number that decode and from the rounds that it
has read.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from harness.checks.certification.depth_rules import SLOTS_OF_STEP, DepthRule
from harness.config.depth import DepthTable
from harness.config.step_times import StepTimes
from harness.engine.depth import Depth, DepthByBatch
from harness.engine.planner import Planner

REQUESTS_PER_ENGINE_SLOT = 64
"""Steps enough for the planner to probe other depths, several times."""
TABLE: DepthTable = ((1, 3), (2, 0), (3, 2), (4, 1))
"""Drafts from each number of decoding requests on: every depth, in no order. A full batch drafts, or all requests would
go on in step."""
TIMES = StepTimes((1, SLOTS_OF_STEP), ((1.0, 1.04, 1.08, 1.12), (1.0, 1.2, 1.5, 1.9)))
"""Seconds of a step by batch size and depth, among which the best depth changes with the batch and with what the rounds
accepted. Given, not measured, so that choices follow from the rounds alone and repeat."""


def depth_of(rule: DepthRule, num_drafts: int) -> Depth:
    """What decides the depth in an engine whose rounds draft up to `num_drafts` tokens."""
    assert rule.is_of_step
    return DepthByBatch(TABLE) if rule is DepthRule.batch else Planner(num_drafts, TIMES)


class EngineSteps:
    """The engines of a table, step by step."""

    def __init__(self, num_slots: int, make: Callable[[], Depth]) -> None:
        """make: what decides the depth in one engine."""
        self._depths = [make() for _ in range(-(-num_slots // SLOTS_OF_STEP))]
        self._numbers, self._chosen = [0] * len(self._depths), [0] * len(self._depths)
        """Requests that decode in the step of each engine, and its depth."""

    def choose(self, slots: Tensor, decodes: Tensor) -> Tensor:
        """[R] int64, drafts of each request's next round; 0 for those that do not decode.

        Args:
            slots: [R] int64.
            decodes: [R] bool.
        """
        engines = slots // SLOTS_OF_STEP
        self._numbers = torch.bincount(engines[decodes], minlength=len(self._depths)).tolist()
        pairs = zip(self._depths, self._numbers, strict=True)
        self._chosen = [depth.choose(number) if number else 0 for depth, number in pairs]
        return torch.tensor(self._chosen, device=slots.device)[engines] * decodes

    def learn(self, slots: Tensor, goes_on: Tensor, num_accepted: Tensor) -> None:
        """Tell the engines what the rounds of their step accepted.

        Args:
            slots: [R] int64.
            goes_on: [R] bool, rounds that did not end their request: the engine learns from no others.
            num_accepted: [R] int64.
        """
        accepted: list[list[int]] = [[] for _ in self._depths]
        engines, numbers = (slots // SLOTS_OF_STEP)[goes_on].tolist(), num_accepted[goes_on].tolist()
        for engine, number in zip(engines, numbers, strict=True):
            accepted[engine].append(number)
        for depth, number, chosen, mine in zip(self._depths, self._numbers, self._chosen, accepted, strict=True):
            if number:
                depth.learn(number, chosen, mine, seconds=0.0, num_prompt_tokens=0)
