"""How long steps of each batch size and depth take, measured on an idle engine.

Slots decode at half of their capacity, whatever they hold; a request that gets one later overwrites it. The time of the
host between two steps is not included.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from harness.engine.graph_runner import GraphRunner
from harness.engine.runner import EagerRunner
from harness.settings.step_times import StepTimes

NUM_REPEATS = 5
"""Of each step; the fastest counts, since interruptions only add time."""


def measure_step_times(runner: EagerRunner | GraphRunner, depths: Sequence[int]) -> StepTimes:
    """Times of steps without prompts, for powers of two of the slots and for all of them.

    Args:
        runner: of the engine, prepared; no step is under way.
        depths: 0, 1, .. K.
    """
    state = runner.step.state
    num_slots, capacity = state.lengths.numel(), state.token_ids.shape[1]
    sizes = sorted({num_slots, *(2**power for power in range(num_slots.bit_length()))} & {*range(num_slots + 1)})
    taken: dict[tuple[int, int], list[float]] = {}
    for repeat in range(NUM_REPEATS + 1):
        for size in sizes:
            for depth in depths:
                state.lengths.fill_(max(2, capacity // 2))
                began = time.perf_counter()
                runner.launch_rounds(size, depth, max(2, capacity // 2)).wait()
                if repeat:
                    # the first one is a warm-up
                    taken.setdefault((size, depth), []).append(time.perf_counter() - began)
    state.lengths.fill_(1)
    state.rounds.fill_(0)
    return StepTimes(tuple(sizes), tuple(tuple(min(taken[size, depth]) for depth in depths) for size in sizes))
