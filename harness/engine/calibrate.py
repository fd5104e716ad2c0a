"""How long steps of each batch size and depth take, measured on an idle engine.

Slots decode at half of their capacity, whatever they hold; a request that gets one later overwrites it. Each step is
launched before the one before it was read, as the engine does, so that the host's part hides behind the device's; what
the host does with the results of a step is not included.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from harness.config.step_times import StepTimes
from harness.engine.graph_runner import GraphRunner
from harness.engine.runner import EagerRunner, Launched

NUM_REPEATS = 4
"""Of each measurement; the fastest counts, since interruptions only add time."""
NUM_STEPS = 4
"""Of a measurement, one behind the other."""


def measure_step_times(runner: EagerRunner | GraphRunner, depths: Sequence[int]) -> StepTimes:
    """Times of steps without prompts, for powers of two of the slots and for all of them.

    Args:
        runner: of the engine, prepared; no step is under way.
        depths: 0, 1, .. K.
    """
    state = runner.step.state
    num_slots, capacity = state.lengths.numel(), state.token_ids.shape[1]
    sizes = sorted({num_slots, *(2**power for power in range(num_slots.bit_length()))} & {*range(num_slots + 1)})
    length = max(2, capacity // 2)

    def launch(size: int, depth: int) -> Launched:
        state.lengths.fill_(length)
        return runner.launch_rounds(size, depth, length)

    def measure(size: int, depth: int) -> float:
        under_way = launch(size, depth)
        following = launch(size, depth)
        under_way.wait()
        began = time.perf_counter()
        for _ in range(NUM_STEPS - 1):
            under_way, following = following, launch(size, depth)
            under_way.wait()
        following.wait()
        # where a launch returns after its step, the first of them had ended before the clock began
        return (time.perf_counter() - began) / (NUM_STEPS - (following.arrived is None))

    taken: dict[tuple[int, int], float] = {}
    for _ in range(NUM_REPEATS):
        for size in sizes:
            for depth in depths:
                taken[size, depth] = min(measure(size, depth), taken.get((size, depth), math.inf))
    state.lengths.fill_(1)
    state.rounds.fill_(0)
    return StepTimes(tuple(sizes), tuple(tuple(taken[size, depth] for depth in depths) for size in sizes))
