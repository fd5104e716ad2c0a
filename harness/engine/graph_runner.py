"""Steps as CUDA graphs: every size is captured once, before the clock starts, and replayed from then on.

A step has a size: how many slots take part, how many rows of prompts it reads, and how many tokens its rounds draft. A
plan gets the smallest captured size that holds it; what is left over works on the spare slot. Where depths differ,
steps without prompts are captured for each of them; in a step with prompts all rows have one width, so that it drafts K
tokens and verifies as many as its plan says. The length of the sequences is no part of the size: fused attention reads
only what each row has, and layers that run unfused attend to a slot's whole capacity, masked. Where there is no GPU the
same steps run at the same sizes without a graph.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from harness.engine.inputs import in_rows, num_rows, step_inputs
from harness.engine.runner import Launched, fetch
from harness.engine.slots import DECODES, NOT_DECIDING, StepInputs
from harness.engine.step import Step, StepOutput
from harness.engine.step_plan import StepPlan

MAX_PREFILL_TOKENS = 2048
"""Prompt tokens of a step: about as many as keep the GPU's arithmetic busy for as long as reading the weights takes
several times over; more would only delay the rounds of the others."""
MIN_PREFILL_ROWS = 8
STEPS_UNDER_WAY = 2
"""The one that is read and the one launched after it."""


DepthsOf = Callable[[int], Collection[int]]


class StepSize(NamedTuple):
    """What a captured step has room for."""

    num_slots: int
    num_prompt_rows: int
    depth: int | None = None
    """Drafts of its rounds; None for K."""


@dataclass
class CapturedStep:
    """A step of one size with the memory that it reads and writes."""

    inputs: Tensor
    """[5 * B + P * (T + 3)] int64: fields of slots, then rows of prompts; where depths differ, a number for each slot
    behind them: drafts that are verified at most."""
    given: StepInputs
    """The same as a step takes them."""
    run: Callable[[], StepOutput]
    last: list[int] | None = None
    """What `inputs` holds."""


class GraphRunner:
    """Launches the steps of one engine as graphs."""

    def __init__(
        self,
        step: Step,
        num_slots: int,
        max_prefill_tokens_with_decodes: int | None = None,
        depths: DepthsOf | None = None,
    ) -> None:
        """depths: see `step_sizes`."""
        assert step.joins
        self.step = step
        self._has_depths = depths is not None
        self.max_prefill_tokens_with_decodes = max_prefill_tokens_with_decodes
        self.row_width = step.num_speculative_tokens + 1
        max_rows = -(-MAX_PREFILL_TOKENS // self.row_width)
        self.max_prefill_tokens = max_rows * self.row_width
        limit = max_prefill_tokens_with_decodes
        max_prefill_rows_with_decodes = None if limit is None else min(max(1, limit // self.row_width), max_rows)
        self.sizes = step_sizes(num_slots, max_rows, max_prefill_rows_with_decodes, depths)
        self.graph_bytes = 0
        """Memory of the captured steps: what they work in and leave their results in."""
        self._steps: dict[StepSize, CapturedStep] = {}
        self._pool: Any = None

    def prepare(self) -> None:
        """Capture every size, the largest first, so that the smaller ones find room in its memory.

        Raises:
            ValueError: memory ran out; it says beside what, and what to lower.
        """
        missing = [size for size in reversed(self.sizes) if size not in self._steps]
        if not missing:
            return
        before = self._reserved_bytes()
        for size in missing:
            try:
                captured = self._capture(size)
                if captured.inputs.is_cuda:
                    self._rehearse(captured)
            except torch.OutOfMemoryError as error:
                raise ValueError(self._too_large(size, before)) from error
            self._steps[size] = captured
        self.graph_bytes = self._pool_bytes()

    def _pool_bytes(self) -> int:
        """What torch holds for the graphs alone: what it holds in all may shrink, as a capture empties its cache."""
        if self._pool is None:
            return 0
        segments = torch.cuda.memory_snapshot()
        return sum(segment["total_size"] for segment in segments if segment["segment_pool_id"] == self._pool)

    def _reserved_bytes(self) -> int:
        device = self.step.target.device
        return torch.cuda.memory_reserved(device) if device.type == "cuda" else 0

    def _too_large(self, size: StepSize, before: int) -> str:
        """What is wrong where the step of a size has no room, though weights and caches had."""
        return (
            f"backend.device: expected memory for a step of {size.num_slots} slots and {size.num_prompt_rows} rows of "
            f"prompts as a CUDA graph, found too little: torch held {before / 1e9:.2f} GB (weights, caches, other "
            f"cells), and {self._reserved_bytes() / 1e9:.2f} GB with {len(self._steps)} such steps and this one. Lower "
            "backend.max_concurrency, decoding.max_new_tokens, backend.max_length or drafting.num_speculative_tokens, "
            "run fewer cells at once, take backend.graphs=false, or end what else runs there."
        )

    def rehearse_on_meta(self) -> None:
        """Run every size once, on the meta device, for the launches of a capture alone."""
        self.prepare()
        for captured in self._steps.values():
            captured.run()

    def launch(self, plan: StepPlan) -> Launched:
        return fetch(self._take_in(plan).run())

    def launch_rounds(self, num_slots: int, depth: int, length: int) -> Launched:
        """Launch a step in which the first slots, of `length` tokens each, decode whatever they hold."""
        size = self._smallest(num_slots, 0, depth)
        captured = self._steps[size]
        decides = [DECODES] * num_slots + [NOT_DECIDING] * (size.num_slots - num_slots)
        captured.last = [*decides, *[0] * 4 * size.num_slots, *[depth] * size.num_slots]
        copy_in(captured.last, captured.inputs)
        return fetch(captured.run())

    def _take_in(self, plan: StepPlan) -> CapturedStep:
        """The captured step for a plan, its inputs on their way to the device."""
        step, size = self.step, self._size(plan)
        captured = self._steps[size]
        num_drafts, spare = step.num_speculative_tokens, step.state.spare
        slots, rows = in_rows(plan, num_drafts, size.num_slots, size.num_prompt_rows, spare)
        values = [value for row in (*slots, *rows) for value in row]
        if self._has_depths:
            values += [num_drafts if plan.depth is None else plan.depth] * size.num_slots
        if values != captured.last:
            copy_in(values, captured.inputs)
            captured.last = values
        return captured

    def _size(self, plan: StepPlan) -> StepSize:
        depth = plan.depth if self._has_depths and not plan.chunks else None
        return self._smallest(plan.num_slots, num_rows(plan, self.step.num_speculative_tokens), depth)

    def _smallest(self, num_slots: int, num_prompt_rows: int, depth: int | None) -> StepSize:
        return next(
            size
            for size in self.sizes
            if size.num_slots >= num_slots and size.num_prompt_rows >= num_prompt_rows and size.depth == depth
        )

    def _new_inputs(self, size: StepSize) -> tuple[Tensor, StepInputs]:
        """Memory for the inputs of a size, and the inputs in it."""
        step = self.step
        num_fields = 5 * size.num_slots
        # all zeros: no slot decides, and every row lies at the start of a slot
        num_values = num_fields + size.num_prompt_rows * (self.row_width + 3)
        num_depths = size.num_slots if self._has_depths else 0
        inputs = torch.zeros(num_values + num_depths, dtype=torch.int64, device=step.target.device)
        rows = inputs[num_fields:num_values].view(size.num_prompt_rows, self.row_width + 3)
        max_drafts = inputs[num_values:] if self._has_depths else None
        rows[:, 0] = step.state.spare
        capacity = step.state.token_ids.shape[1]
        slots = inputs[:num_fields].view(5, size.num_slots)
        return inputs, step_inputs(slots, rows, capacity, size.depth, max_drafts)

    def _capture(self, size: StepSize) -> CapturedStep:
        inputs, given = self._new_inputs(size)
        if not inputs.is_cuda:
            return CapturedStep(inputs, given, lambda: self._run(given))
        # kernels are compiled and scratch memory grows outside of the capture
        self._run(given)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            output = self._run(given)
        self._pool = graph.pool()

        def replay() -> StepOutput:
            graph.replay()
            return output

        return CapturedStep(inputs, given, replay)

    def _rehearse(self, captured: CapturedStep) -> None:
        """Launch a step in which no slot decides, as often as steps are under way at once.

        The first replay of a graph brings it to the device, and the first copies of a size take pinned memory: time
        that belongs to no request, and to no arm of a comparison that happens to come first.
        """
        values = captured.inputs.tolist()
        under_way = []
        for _ in range(STEPS_UNDER_WAY):
            copy_in(values, captured.inputs)
            under_way.append(fetch(captured.run()))
        under_way[-1].wait()

    def _run(self, given: StepInputs) -> StepOutput:
        """The step that is captured."""
        return self.step(given)


def copy_in(values: list[int], memory: Tensor) -> None:
    """Copy values to memory of the device, after everything launched so far.

    Args:
        values: N integers.
        memory: [N] int64, contiguous.
    """
    source = torch.tensor(values)
    if memory.is_cuda:
        source = source.pin_memory()
    memory.copy_(source, non_blocking=True)


def step_sizes(
    num_slots: int,
    max_prefill_rows: int,
    max_prefill_rows_with_decodes: int | None = None,
    depths: DepthsOf | None = None,
) -> list[StepSize]:
    """The sizes that are captured, from the smallest: without prompts for powers of two of slots, with them for all.

    A step with prompts is bound by arithmetic, and padded rows cost as much as others: hence sizes halfway between, and
    one of `max_prefill_rows_with_decodes`, the most that prompts have beside rounds (None: no limit).

    Args:
        depths: the depths that rounds of so many requests, or fewer, may have; None where all have K.
    """
    slots = _powers(1, num_slots)
    powers = _powers(min(MIN_PREFILL_ROWS, max_prefill_rows), max_prefill_rows)
    halfway = ((smaller + larger) // 2 for smaller, larger in pairwise(powers))
    limit = () if max_prefill_rows_with_decodes is None else (max_prefill_rows_with_decodes,)
    rows = sorted({*powers, *halfway, *limit})
    alone = [StepSize(each, 0, depth) for each in slots for depth in (sorted(depths(each)) if depths else (None,))]
    return alone + [StepSize(num_slots, each) for each in rows]


def _powers(first: int, last: int) -> list[int]:
    """first, 2 first, 4 first, ... and last."""
    found = []
    while first < last:
        found.append(first)
        first *= 2
    return [*found, last]
