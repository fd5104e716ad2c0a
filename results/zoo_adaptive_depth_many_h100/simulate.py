"""The planner of depth beside fixed depths, in simulated runs with the step times that an H100 took.

    python results/zoo_adaptive_depth_many_h100/simulate.py

Requests of 64 output tokens and 20 to 80 prompt tokens, whose drafts are accepted at rates of their own. A step of all
requests takes the measured time, 55 % of which does not shrink with fewer requests, and in addition 0.4 us a prompt
token, 30 us when its depth changes, 3 % of noise, and one step in 25 an interruption of up to 1.5 ms. Prints for each
calibration the planner's output tokens a second beside those of the best fixed depth, both sums over six seeds.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from functools import partial

from harness.engine.planner import Planner
from harness.settings.step_times import StepTimes

K = 8
STEP_MS = {
    1: (0.30, 0.36, 0.40, 0.45, 0.49, 0.53, 0.57, 0.615, 0.66),
    8: (0.32, 0.42, 0.46, 0.52, 0.57, 0.625, 0.68, 0.72, 0.76),
    32: (0.36, 0.495, 0.558, 0.609, 0.667, 0.73, 0.773, 0.79, 0.818),
    128: (0.40, 0.50, 0.58, 0.65, 0.72, 0.795, 0.87, 0.92, 0.967),
}
"""By requests in flight and depth 0..8: steps of the reports without their prompts; 5 and 7 lie between."""
NUM_REQUESTS = {1: 512, 8: 1536, 32: 4096, 128: 8192}
RATES = (0.60, 0.56, 0.58, 0.55, 0.58, 0.58, 0.55, 0.50)
"""Of acceptance by position, for a request of mean rate."""
CALIBRATIONS: dict[str, Callable[[int, float, float], float]] = {
    "exact": lambda depth, ms, plain_ms: ms,
    "a third too flat": lambda depth, ms, plain_ms: ms - 0.35 * (ms - plain_ms),
    "a fifth too steep": lambda depth, ms, plain_ms: ms + 0.2 * (ms - plain_ms),
    "odd depths 4.5 % too fast": lambda depth, ms, plain_ms: ms * (1 - 0.045 * (depth % 2)),
    "even depths 4.5 % too fast": lambda depth, ms, plain_ms: ms * (0.955 + 0.045 * (depth % 2)),
}
"""What is measured beforehand, by depth, from the true milliseconds of the step and of one without drafts."""
SEEDS = range(6)


def share(size: int, num_slots: int) -> float:
    """Of the time of a full step, that a step of fewer requests takes."""
    return 0.55 + 0.45 * size / num_slots


def tokens_per_s(num_slots: int, seed: int, choose: Callable[[int], int], planner: Planner | None) -> float:
    """Output tokens a second of one run."""
    rng, waiting, now, tokens, before = random.Random(seed), NUM_REQUESTS[num_slots], 0.0, 0, -1
    running: list[list[float]] = []
    while waiting or running:
        begun: list[list[float]] = []
        while waiting and len(running) + len(begun) < num_slots:
            waiting -= 1
            begun.append([64, min(0.98, max(0.02, rng.betavariate(4, 2.4))) / 0.62, rng.randint(20, 80)])
        size, depth = len(running), choose(len(running)) if running else 0
        num_prompt_tokens = int(sum(request[2] for request in begun))
        step_s = STEP_MS[num_slots][depth] * share(size, num_slots) * 1e-3 if size else 1e-4
        step_s += 0.4e-6 * math.ceil(num_prompt_tokens / 64) * 64 + 30e-6 * (depth != before and size > 0)
        step_s *= math.exp(rng.gauss(0, 0.03))
        step_s += rng.random() * 1.5e-3 if rng.random() < 0.04 else 0.0
        before, now, accepted = depth, now + step_s, []
        for request in running:
            num = 0
            while num < depth and rng.random() < min(0.98, RATES[num] * request[1]):
                num += 1
            emitted = min(num + 1, int(request[0]))
            tokens, request[0] = tokens + emitted, request[0] - emitted
            accepted += [num] if request[0] > 0 else []
        for request in begun:
            tokens, request[0] = tokens + 1, request[0] - 1
        running = [request for request in running if request[0] > 0] + begun
        if planner is not None and size:
            planner.learn(size, depth, accepted, step_s, num_prompt_tokens)
    return tokens / now


def planned(num_slots: int, seed: int, calibrated: Callable[[int, float, float], float]) -> float:
    """The same with depths of a planner."""
    times, sizes = STEP_MS[num_slots], [2**power for power in range(num_slots.bit_length())]
    measured = [calibrated(depth, ms, times[0]) for depth, ms in enumerate(times)]
    rows = [[ms * share(size, num_slots) * 1e-3 - 5e-5 for ms in measured] for size in sizes]
    planner = Planner(K)
    planner.prepare(
        lambda depths: StepTimes(tuple(sizes), tuple(tuple(max(1e-5, each) for each in row) for row in rows))
    )
    return tokens_per_s(num_slots, seed, planner.choose, planner)


def _always(depth: int, size: int) -> int:
    return depth


def main() -> None:
    print("requests", *CALIBRATIONS, sep=" | ")
    for num_slots in STEP_MS:
        fixed = [
            sum(tokens_per_s(num_slots, seed, partial(_always, depth), None) for seed in SEEDS)
            for depth in range(K + 1)
        ]
        found = [sum(planned(num_slots, seed, each) for seed in SEEDS) / max(fixed) for each in CALIBRATIONS.values()]
        print(num_slots, *(f"{value:.3f}" for value in found), sep=" | ", flush=True)


if __name__ == "__main__":
    main()
