"""One round of an engine, split into the phases of its step, with what the host adds to them.

    draft, target, verify, extend, commit    each timed alone, on what the phases before it left
    step                                     all of them as one piece of work
    round                                    wall time between two results of the running engine
    host                                     round - step, not below 0: what the device does not hide

On a GPU every piece is the replay of a CUDA graph from a cold L2, whatever the engine itself does; for `round` the
engine runs as it is. The slots hold real prompts, read by the step itself, so that tokens, experts and acceptance are
those of decoding. It does not know configurations, files or bandwidths.

Shapes: S slots that decode, L tokens in each of them, K draft tokens of a round.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import pairwise
from typing import Any, NamedTuple

import torch

from harness.checks.profiling.roofline import RoundCost, round_cost
from harness.checks.timing.clock import Clock, timing_of
from harness.checks.timing.measured import Timing
from harness.drafters.protocol import KeepsTexts
from harness.engine.engine import Engine
from harness.engine.graph_runner import MAX_PREFILL_TOKENS
from harness.engine.inputs import fields_and_rows, in_pieces, in_rows, num_rows, step_inputs
from harness.engine.request import Request
from harness.engine.row_groups import tokens_of_group
from harness.engine.runner import EagerRunner
from harness.engine.sequence import Sequence as EngineSequence
from harness.engine.slots import StepInputs
from harness.engine.step import Step
from harness.engine.step_plan import Chunk, StepPlan

Work = Callable[[], object]


@dataclass(frozen=True)
class Phases:
    """The parts of a step, each timed alone."""

    draft: Timing
    """With applying the host's input."""
    target: Timing
    verify: Timing
    extend: Timing
    """The drafter's part after verification."""
    commit: Timing

    @property
    def sum_us(self) -> float:
        """Of the medians."""
        return sum(getattr(self, item.name).median_us for item in fields(self))


@dataclass(frozen=True)
class RoundProfile:
    """Where the time of a round goes."""

    num_slots: int
    num_speculative_tokens: int
    length: int
    """Tokens in each slot."""
    phases: Phases
    step: Timing
    put_back: Timing
    """The copies that undo a step, which are part of `phases.commit` and of `step`."""
    round: Timing
    """Wall time from one result of the running engine to the next."""
    mean_accepted: float
    """Draft tokens that a slot accepts in the round that was timed."""
    num_invalid: int
    """Slots whose verification, in that round, met a row without a distribution or an impossible draft."""
    cost: RoundCost

    @property
    def host_us(self) -> float:
        """What a round takes beyond its step, none of it hidden behind the device; 0 where it takes less.

        Without a meaning on a CPU, where the step itself is the host's work.
        """
        return max(0.0, self.round.median_us - self.step.median_us)

    @property
    def host_share(self) -> float:
        """Of the round's wall time."""
        return self.host_us / self.round.median_us

    def to_json(self) -> dict[str, Any]:
        """Every field as plain JSON values."""
        values = asdict(self)
        del values["cost"]
        return values | self.cost.to_json()


@torch.inference_mode()
def profile_round(engine: Engine, requests: Sequence[Request], clock: Clock, num_rounds: int) -> RoundProfile:
    """Profile a round of an engine that is not running; the next run finds its slots empty.

    Args:
        engine: goes on past the end of sequence, allows `output_tokens_needed`, and limits no prompts beside rounds.
        requests: one for each slot that takes part, all with L - 1 prompt tokens.
        clock: for the device of the engine.
        num_rounds: rounds of the running engine, 2 or more.

    Raises:
        ValueError: the requests have different lengths, or the engine's limits are not as above.
    """
    length = _length(requests)
    _check_limits(engine, len(requests), length, num_rounds)
    wall = round_time(engine, requests, num_rounds)
    return _split(engine.step, requests, length, clock, wall)


def _split(step: Step, requests: Sequence[Request], length: int, clock: Clock, wall: Timing) -> RoundProfile:
    """The profile of a step, beside the wall time of a round."""
    inputs = prefill_slots(step, requests)
    start = Snapshot(step)
    drafted = step.draft(inputs)
    scored = step.score(inputs, drafted)
    verified = step.verify(inputs, drafted, scored)

    def with_restore(work: Work) -> Timing:
        """Time of work that moves the state, restoring the state included."""

        def work_and_back() -> None:
            work()
            start.put_back()

        start.put_back()
        return clock.time(work_and_back)

    phases = Phases(
        draft=clock.time(lambda: step.draft(inputs)),
        target=clock.time(lambda: step.score(inputs, drafted)),
        verify=clock.time(lambda: step.verify(inputs, drafted, scored)),
        extend=clock.time(lambda: step.extend(inputs, scored, verified)),
        commit=with_restore(lambda: step.commit(scored, verified)),
    )
    return RoundProfile(
        num_slots=len(requests),
        num_speculative_tokens=step.num_speculative_tokens,
        length=length,
        phases=phases,
        step=with_restore(lambda: step(inputs)),
        put_back=clock.time(start.put_back),
        round=wall,
        mean_accepted=float(verified.verdict.num_accepted.double().mean()),
        num_invalid=int(verified.verdict.invalid.sum()),
        cost=round_cost(step, len(requests), length),
    )


def _length(requests: Sequence[Request]) -> int:
    """L; raises ValueError unless all prompts are of one length."""
    lengths = {len(request.token_ids) for request in requests}
    if len(lengths) != 1:
        raise ValueError(f"profile of a round: expected prompts of one length, found {sorted(lengths)} tokens")
    return lengths.pop() + 1


def _check_limits(engine: Engine, num_slots: int, length: int, num_rounds: int) -> None:
    limits, num_tokens = engine.settings.limits, engine.settings.num_speculative_tokens
    needed = output_tokens_needed(num_slots, length, num_tokens, num_rounds)
    if limits.eos_token_ids or limits.max_new_tokens < needed or engine.settings.num_slots < num_slots:
        raise ValueError(
            f"profile of a round: expected an engine of {num_slots} slots or more that goes on past the end of "
            f"sequence for {needed} tokens or more, found {engine.settings.num_slots} slots, {limits.max_new_tokens} "
            f"tokens and {len(limits.eos_token_ids)} tokens that end a sequence"
        )


class Snapshot:
    """Copies of the tensors that a round changes and the next one starts from, so that it can run again and again."""

    def __init__(self, step: Step) -> None:
        self._tensors = where_a_round_starts(step)
        self._copies = [tensor.clone() for tensor in self._tensors]

    def put_back(self) -> None:
        """Give every tensor its values of the beginning; launches only, so that a CUDA graph can hold it."""
        for tensor, copy in zip(self._tensors, self._copies, strict=True):
            tensor.copy_(copy)


def where_a_round_starts(step: Step) -> list[torch.Tensor]:
    """What a round changes and the next one starts from: lengths, rounds, and the drafter's state.

    What a round writes before it reads it (draft logits, keys and values from the last token on) is not among it.
    """
    return [step.state.lengths, step.state.rounds, *step.drafter.state()]


def prefill_slots(step: Step, requests: Sequence[Request]) -> StepInputs:
    """Read a prompt into each of the first slots and draw the token after it; all end in the same step.

    Returns:
        The inputs of the round that comes next, as the engine's runner would give them.
    """
    sequences = [EngineSequence(request, slot, 0.0) for slot, request in enumerate(requests)]
    num_tokens, width = sequences[0].num_prompt_tokens, step.num_speculative_tokens + 1
    if isinstance(step.drafter, KeepsTexts):
        for slot in range(len(sequences)):
            step.drafter.begin(slot)
    size = num_tokens
    if step.joins:
        whole = tokens_of_group(width)
        size = width if step.is_recurrent else whole * max(1, MAX_PREFILL_TOKENS // (whole * len(sequences)))
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
        return in_pieces(plan, num_tokens, EagerRunner.max_prefill_tokens, device, not step.is_recurrent)
    is_grouped = not step.is_recurrent
    size = num_tokens, plan.num_slots, num_rows(plan, num_tokens, is_grouped)
    values = torch.from_numpy(in_rows(plan, *size, step.state.spare, is_grouped)).to(device)
    return step_inputs(*fields_and_rows(values, *size), step.state.token_ids.shape[1], is_grouped=is_grouped)


MAX_ROUNDS = 32
"""Rounds of the running engine that are looked at."""


def num_rounds_of(num_repeats: int) -> int:
    """Rounds of the running engine that a profile of so many repeats looks at."""
    return min(num_repeats, MAX_ROUNDS)


def output_tokens_needed(num_slots: int, length: int, num_speculative_tokens: int, num_rounds: int) -> int:
    """Output tokens that a request must be allowed, so that all run side by side for so many rounds.

    The first ones may decode at full acceptance while the prompts of the last are still being read.
    """
    width = num_speculative_tokens + 1
    num_prompt_steps = 1 + num_slots * (length + tokens_of_group(width)) // MAX_PREFILL_TOKENS
    return 1 + width * (num_rounds + num_prompt_steps)


def round_time(engine: Engine, requests: Sequence[Request], num_rounds: int) -> Timing:
    """Wall time between results while all requests decode, at about the length that the prompts lead to.

    The requests run twice: what is compiled, captured and allocated once belongs to no round, and what a round emits
    says how much shorter the prompts have to be for the measured rounds to lie around that length.
    """
    rounds = _rounds_side_by_side(engine, requests, num_rounds)
    size = max(1, len(requests[0].token_ids) - round(rounds.mean_emitted * num_rounds / 2))
    shorter = [replace(request, token_ids=request.token_ids[:size]) for request in requests]
    times_s = _rounds_side_by_side(engine, shorter, num_rounds).times_s
    return timing_of([1e6 * time_s for time_s in times_s], in_graph=False)


class _Rounds(NamedTuple):
    """Rounds in which all requests took part."""

    times_s: list[float]
    mean_emitted: float
    """Tokens of a request and round."""


def _rounds_side_by_side(engine: Engine, requests: Sequence[Request], num_rounds: int) -> _Rounds:
    """The first rounds from when the last prompt has been read until the first request ends."""
    records = engine.run(requests, lambda record: None).requests
    first = max(record.rounds[0].arrival_s for record in records)
    last = min(record.rounds[-1].arrival_s for record in records)
    arrivals = [item.arrival_s for item in records[0].rounds if first <= item.arrival_s <= last][: num_rounds + 1]
    assert len(arrivals) == num_rounds + 1, "output_tokens_needed leaves room for all rounds"
    emitted = [item.num_output_tokens for record in records for item in record.rounds if item.arrival_s in arrivals[1:]]
    return _Rounds([after - before for before, after in pairwise(arrivals)], sum(emitted) / len(emitted))
