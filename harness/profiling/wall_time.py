"""What a round takes by the wall clock while the engine runs, host included."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

from harness.engine.engine import Engine
from harness.engine.graph_runner import MAX_PREFILL_TOKENS
from harness.engine.request import Request
from harness.timing.clock import timing_of
from harness.timing.measured import Timing

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
    num_prompt_steps = 1 + num_slots * (length + width) // MAX_PREFILL_TOKENS
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
