"""Steps as CUDA graphs: every size is captured once, before the clock starts, and replayed from then on.

A step has a size: how many slots take part, how many rows of prompts it reads, and how many tokens its rounds draft. A
plan gets the smallest captured size that holds it; what is left over works on the spare slot. Rows of prompts are as
wide as those of rounds, a token more than these draft, and come in whole groups (row_groups). The length of the
sequences is no part of the size: fused attention reads only what each row has, and layers that run unfused attend to a
slot's whole capacity, masked. Where there is no GPU the same steps run at the same sizes without a graph.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from harness.engine.inputs import Integers, fields_and_rows, in_rows, num_input_values, num_rows, step_inputs
from harness.engine.row_groups import rows_for, rows_of_group, tokens_of_group
from harness.engine.runner import STEPS_UNDER_WAY, Launched, Results
from harness.engine.slots import DECODES, StepInputs
from harness.engine.step import Step, StepOutput
from harness.engine.step_plan import PrefillRoom, StepPlan
from harness.models.rank_died import RankDiedError

MAX_PREFILL_TOKENS = 2048
"""Prompt tokens of a step: about as many as keep the GPU's arithmetic busy for as long as reading the weights takes
several times over; more would only delay the rounds of the others."""
MIN_PREFILL_ROWS = 8
MIN_PREFILL_TOKENS = 128
"""Prompt tokens of the smallest step that reads prompts where depths are chosen. With fewer than about 300 tokens an
H100 waits for weights (990 TFLOP/s and 3.35 TB/s in bfloat16): 16 requests with 8 drafts and 128 prompt tokens are
272."""
FEW_DEPTHS = 3
"""Up to so many depths of a table have the sizes of prompts that one depth has."""


DepthsOf = Callable[[int], Collection[int]]

NOT_CAPTURED = (
    "backend.graphs: expected a step that a CUDA graph can hold, found one that copies from the host or waits for the "
    "device, in the code of its target or drafter ({}); take backend.graphs=false"
)


class StepSize(NamedTuple):
    """What a captured step has room for."""

    num_slots: int
    num_prompt_rows: int
    depth: int
    """Drafts of its rounds; its rows have a token more."""


@dataclass
class CapturedStep:
    """A step of one size with the memory that it reads and writes."""

    inputs: Tensor
    """[5 * B + P * (T + 3)] int64: fields of slots, then rows of prompts."""
    given: StepInputs
    """The same as a step takes them."""
    run: Callable[[], StepOutput]
    last: bytes = b""
    """What `inputs` holds; empty if not known."""


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
        self._max_prefill_tokens_with_decodes = max_prefill_tokens_with_decodes
        self._largest_depth = step.num_speculative_tokens if depths is None else max(depths(num_slots))
        # a prompt has one row of a step of a recurrent model
        max_rows = num_slots if step.is_recurrent else None
        self.sizes = step_sizes(num_slots, self._largest_depth, max_prefill_tokens_with_decodes, depths, max_rows)
        self._by_depth: dict[int, list[StepSize]] = {}
        for size in self.sizes:
            self._by_depth.setdefault(size.depth, []).append(size)
        self.graph_bytes = 0
        """Memory of the captured steps: what they work in and leave their results in."""
        self._steps: dict[StepSize, CapturedStep] = {}
        self._pool: Any = None
        self._results = Results()

    def prepare(self) -> None:
        """Capture every size, the largest first, so that the smaller ones find room in its memory.

        Raises:
            ValueError: memory ran out, and it says beside what, and what to lower; or a graph cannot hold the step.
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
        return self._results.fetch(self._take_in(plan).run())

    def prefill_room(self, depth: int | None) -> PrefillRoom:
        """Of a step of a depth; where nothing decodes, of the widest rows, which read prompts best."""
        width = (self._largest_depth if depth is None else depth) + 1
        max_tokens = max_prefill_rows(width) * width
        if self.step.is_recurrent:
            return PrefillRoom(max_tokens, width, self._max_prefill_tokens_with_decodes, max_tokens_of_prompt=width)
        return PrefillRoom(max_tokens, tokens_of_group(width), self._max_prefill_tokens_with_decodes)

    def launch_rounds(self, num_slots: int, depth: int, length: int) -> Launched:
        """Launch a step in which the first slots, of `length` tokens each, decode whatever they hold."""
        size = self._smallest(num_slots, 0, depth)
        captured = self._steps[size]
        values = np.zeros(5 * size.num_slots, dtype=np.int64)
        values[:num_slots] = DECODES
        captured.last = values.tobytes()
        copy_in(values, captured.inputs)
        return self._results.fetch(captured.run())

    def _take_in(self, plan: StepPlan) -> CapturedStep:
        """The captured step for a plan, its inputs on their way to the device."""
        size = self._size(plan)
        captured = self._steps[size]
        step = self.step
        values = in_rows(
            plan, size.depth, size.num_slots, size.num_prompt_rows, step.state.spare, not step.is_recurrent
        )
        given = values.tobytes()
        if given != captured.last:
            copy_in(values, captured.inputs)
            captured.last = given
        return captured

    def _size(self, plan: StepPlan) -> StepSize:
        depth = self._largest_depth if plan.depth is None else plan.depth
        return self._smallest(plan.num_slots, num_rows(plan, depth, not self.step.is_recurrent), depth)

    def _smallest(self, num_slots: int, num_prompt_rows: int, depth: int) -> StepSize:
        return next(
            size
            for size in self._by_depth[depth]
            if size.num_slots >= num_slots and size.num_prompt_rows >= num_prompt_rows
        )

    def _new_inputs(self, size: StepSize) -> tuple[Tensor, StepInputs]:
        """Memory for the inputs of a size, and the inputs in it."""
        step = self.step
        # all zeros: no slot decides, and every row lies at the start of a slot
        num_values = num_input_values(size.depth, size.num_slots, size.num_prompt_rows)
        inputs = torch.zeros(num_values, dtype=torch.int64, device=step.target.device)
        slots, rows = fields_and_rows(inputs, size.depth, size.num_slots, size.num_prompt_rows)
        rows[:, 0] = step.state.spare
        capacity = step.state.token_ids.shape[1]
        return inputs, step_inputs(slots, rows, capacity, size.depth, not step.is_recurrent)

    def _capture(self, size: StepSize) -> CapturedStep:
        inputs, given = self._new_inputs(size)
        if not inputs.is_cuda:
            return CapturedStep(inputs, given, lambda: self._run(given))
        # kernels are compiled and scratch memory grows outside of the capture
        self._run(given)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        try:
            with (
                self.step.target.captured_elsewhere() as replay_elsewhere,
                torch.cuda.graph(graph, pool=self._pool, capture_error_mode=self.step.target.capture_error_mode),
            ):
                output = self._run(given)
        except (torch.OutOfMemoryError, RankDiedError):
            raise
        except RuntimeError as error:
            # it ran once without a graph
            raise ValueError(NOT_CAPTURED.format(str(error).split("\n")[0])) from error
        self._pool = graph.pool()

        def replay() -> StepOutput:
            replay_elsewhere()
            graph.replay()
            return output

        return CapturedStep(inputs, given, replay)

    def _rehearse(self, captured: CapturedStep) -> None:
        """Launch a step in which no slot decides, as often as steps are under way at once.

        The first replay of a graph brings it to the device, and the first copies of a size take pinned memory: time
        that belongs to no request, and to no arm of a comparison that happens to come first.
        """
        values = captured.inputs.cpu().numpy()
        under_way = []
        for _ in range(STEPS_UNDER_WAY):
            copy_in(values, captured.inputs)
            under_way.append(self._results.fetch(captured.run()))
        under_way[-1].wait()

    def _run(self, given: StepInputs) -> StepOutput:
        """The step that is captured."""
        return self.step(given)


def copy_in(values: Integers, memory: Tensor) -> None:
    """Copy values to memory of the device, after everything launched so far.

    Args:
        values: [N].
        memory: [N] int64, contiguous.
    """
    source = torch.from_numpy(values)
    if memory.is_cuda:
        source = source.pin_memory()
    memory.copy_(source, non_blocking=True)


def max_prefill_rows(width: int) -> int:
    """Rows of so many tokens that hold the prompt tokens of a step."""
    return rows_for(MAX_PREFILL_TOKENS, width)


def step_sizes(
    num_slots: int,
    num_speculative_tokens: int,
    max_prefill_tokens_with_decodes: int | None = None,
    depths: DepthsOf | None = None,
    max_prompt_rows: int | None = None,
) -> list[StepSize]:
    """The sizes that are captured, from the smallest: without prompts for powers of two of slots, with them for all.

    A step with prompts is bound by arithmetic, and padded rows cost as much as others: hence sizes halfway between, and
    one of the groups of rows that `max_prefill_tokens_with_decodes` fills (None: no limit).

    Where depths are chosen every size is captured for each depth, so with more than FEW_DEPTHS there are no halfway
    sizes and none below MIN_PREFILL_TOKENS. With K = 8 and 16 slots these would be 75 graphs more, 2 s at 27 ms each
    with the built-in models. Halfway sizes save 1/6 of the arithmetic of prompts, 3 us a token at Llama-3-8B's shape on
    an H100: 2 s of that are 600,000 prompt tokens. A table of few depths has them, so that it
    differs from single depths in depth alone.

    Args:
        num_speculative_tokens: K.
        depths: the depths that rounds of so many requests, or fewer, may have; None where all have K.
        max_prompt_rows: rows of prompts of a step at most; None for as many as hold MAX_PREFILL_TOKENS.
    """
    chosen = depths or (lambda num_requests: (num_speculative_tokens,))
    found = [StepSize(each, 0, depth) for each in _powers(1, num_slots) for depth in sorted(chosen(each))]
    for depth in sorted(chosen(num_slots)):
        rows = _prompt_rows(depth + 1) if len(chosen(num_slots)) <= FEW_DEPTHS else _few_prompt_rows(depth + 1)
        if max_prefill_tokens_with_decodes is not None:
            filled = max(1, max_prefill_tokens_with_decodes // tokens_of_group(depth + 1))
            rows |= {min(filled * rows_of_group(depth + 1), max_prefill_rows(depth + 1))}
        if max_prompt_rows is not None:
            rows = {min(each, max_prompt_rows) for each in rows}
        found += [StepSize(num_slots, each, depth) for each in sorted(rows)]
    return found


def _prompt_rows(width: int) -> set[int]:
    """The numbers of rows of a width that are captured where all rounds have one depth."""
    group = rows_of_group(width)
    most = max_prefill_rows(width) // group
    powers = _powers(min(max(1, MIN_PREFILL_ROWS // group), most), most)
    halfway = ((smaller + larger) // 2 for smaller, larger in pairwise(powers))
    return {num_groups * group for num_groups in (*powers, *halfway)}


def _few_prompt_rows(width: int) -> set[int]:
    """The same where depths are chosen: rows that hold powers of two of tokens."""
    return {rows_for(tokens, width) for tokens in _powers(MIN_PREFILL_TOKENS, MAX_PREFILL_TOKENS)}


def _powers(first: int, last: int) -> list[int]:
    """first, 2 first, 4 first, ... and last."""
    found = []
    while first < last:
        found.append(first)
        first *= 2
    return [*found, last]
