"""Slots filled by hand: every one gets a prompt in the same steps, so that all decode at one length afterwards."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

import torch

from harness.engine.graph_runner import MAX_PREFILL_TOKENS
from harness.engine.inputs import in_pieces, in_rows, num_rows, step_inputs
from harness.engine.request import Request
from harness.engine.runner import EagerRunner
from harness.engine.sequence import Sequence
from harness.engine.slots import StepInputs
from harness.engine.step import Step
from harness.engine.step_plan import Chunk, StepPlan


def prefill_slots(step: Step, requests: SequenceOf[Request]) -> StepInputs:
    """Read a prompt into each of the first slots and draw the token after it; all end in the same step.

    Returns:
        The inputs of the round that comes next, as the engine's runner would give them.
    """
    sequences = [Sequence(request, slot, 0.0) for slot, request in enumerate(requests)]
    num_tokens, width = sequences[0].num_prompt_tokens, step.num_speculative_tokens + 1
    size = num_tokens
    if step.joins:
        size = width * max(1, MAX_PREFILL_TOKENS // (width * len(sequences)))
    for start in range(0, num_tokens, size):
        stop = min(start + size, num_tokens)
        step(
            _inputs(step, StepPlan((), tuple(Chunk(each, start, stop) for each in sequences), may_be_constrained=False))
        )
    for each in sequences:
        each.launch(1)
    return _inputs(step, StepPlan(tuple(sequences), (), may_be_constrained=False))


def _inputs(step: Step, plan: StepPlan) -> StepInputs:
    """A plan in the layout that the step takes."""
    num_tokens, device = step.num_speculative_tokens, step.target.device
    if not step.joins:
        return in_pieces(plan, num_tokens, EagerRunner.max_prefill_tokens, device)
    slots, rows = in_rows(plan, num_tokens, plan.num_slots, num_rows(plan, num_tokens), step.state.spare)
    capacity = step.state.token_ids.shape[1]
    return step_inputs(torch.tensor(slots, device=device), torch.tensor(rows, device=device), capacity)
