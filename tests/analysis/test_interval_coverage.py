"""95 % intervals contain a known truth in 93 to 97 % of simulated runs, through the functions that make every interval.

A prompt has a difficulty, the same for all its rounds and in every cell of a run: that is what correlates rounds, and
cells. Difficulties are skewed (a few prompts are easy), and hard prompts take more rounds, as they do where requests
are of one length. With few possible difficulties every truth is a finite sum.

Shapes: S simulated runs, P prompts, N rounds at most, K positions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest

from harness.analysis.estimates import Estimates, paired_difference, paired_ratio
from harness.analysis.intervals import MIN_PROMPTS, MIN_REPEATS, mean_interval
from harness.analysis.sums import CellSums

DIFFICULTIES = np.array([0.25, 0.40, 0.55, 0.70, 0.85])
"""Conditional acceptance rate of a prompt at every position."""
SHARES = np.array([0.30, 0.30, 0.20, 0.15, 0.05])
NUM_POSITIONS = 4
GAIN = 0.05
"""What the second method adds to the rate."""
STEP_S = 0.010, 0.012
"""Duration of a round: of the first method, of the second."""
BASE_STEP_S = 0.008
MIN_ROUNDS, MAX_ROUNDS = 8, 24
NUM_RESAMPLES = 1000
NUM_RUNS = 3000
"""The coverage of so many runs has a standard error of .004 where 95 % is the truth: 93 and 97 % lie 5 of them away."""


@dataclass(frozen=True)
class Arm:
    """One method in S runs."""

    num_rounds: np.ndarray
    """[S, P]"""
    reached: np.ndarray
    """[S, P, K] rounds that accepted so many tokens."""
    time_s: np.ndarray
    """[S, P]"""

    def estimates(self, run: int) -> Estimates:
        """Of one run, its prompts the units of resampling."""
        rounds, reached = self.num_rounds[run].astype(float), self.reached[run].astype(float)
        return estimates_of(rounds, reached, self.time_s[run])


def estimates_of(rounds, reached, time_s) -> Estimates:
    """Of [P] rounds, [P, K] rounds that reached a position and [P] seconds; each row is a unit of resampling."""
    accepted = reached.sum(axis=1)
    sums = {
        "num_draft_tokens": NUM_POSITIONS * rounds,
        "num_accepted_tokens": accepted,
        "num_full_drafts": rounds,
        "num_accepted_in_full_drafts": accepted,
        "num_draft_tokens_per_pos_2": rounds,
        "num_accepted_tokens_per_pos_2": reached[:, 1],
        "num_requests_with_drafts": np.ones(len(rounds)),
        "request_acceptance_length": 1 + accepted / rounds,
        "num_output_tokens": rounds + accepted,
        "time_s": time_s,
    }
    names = tuple(f"{row:05d}" for row in range(len(rounds)))
    return Estimates(CellSums(names, sums, {}, NUM_POSITIONS), NUM_RESAMPLES, 0.95)


def simulate(num_prompts: int, num_runs: int, seed: int) -> tuple[Arm, Arm, Arm]:
    """Two methods and a baseline without drafts, on the same prompts."""
    generator = np.random.default_rng(seed)
    kind = generator.choice(len(SHARES), size=(num_runs, num_prompts), p=SHARES)
    num_rounds = generator.integers(MIN_ROUNDS, MAX_ROUNDS + 1, size=kind.shape) + extra_rounds()[kind]
    arms = []
    for gain, step_s in zip((0.0, GAIN), STEP_S, strict=True):
        number = (
            generator.geometric(1 - (DIFFICULTIES + gain)[kind][..., None], (*kind.shape, int(num_rounds.max()))) - 1
        )
        counted = np.arange(number.shape[2]) < num_rounds[..., None]
        reached = np.stack([((number >= i) & counted).sum(axis=2) for i in range(1, NUM_POSITIONS + 1)], axis=2)
        arms.append(Arm(num_rounds, reached, num_rounds * step_s * generator.gamma(50, 1 / 50, kind.shape)))
    # the baseline takes a round for each token that the first method emitted
    tokens = num_rounds + arms[0].reached.sum(axis=2)
    base = Arm(tokens, np.zeros_like(arms[0].reached), tokens * BASE_STEP_S * generator.gamma(50, 1 / 50, kind.shape))
    return (*arms, base)


def extra_rounds() -> np.ndarray:
    """[difficulties] rounds that hard prompts take more than easy ones."""
    return (8 * (1 - DIFFICULTIES)).astype(int)


def truths() -> dict[str, float]:
    """Ratios of expectations, as the definitions of the metrics have them."""
    rounds = SHARES * ((MIN_ROUNDS + MAX_ROUNDS) / 2 + extra_rounds())
    powers = np.arange(1, NUM_POSITIONS + 1)
    first, second = ((DIFFICULTIES[:, None] + gain) ** powers for gain in (0.0, GAIN))
    accepted, more = (float(rounds @ item.sum(axis=1) / rounds.sum()) for item in (first, second))
    return {
        "acceptance_rate": accepted / NUM_POSITIONS,
        "acceptance_rate_per_pos_2": float(rounds @ first[:, 1] / rounds.sum()),
        "full_draft_length": 1 + accepted,
        "mean_acceptance_length_macro": float(1 + SHARES @ first.sum(axis=1)),
        "output_tokens_per_s": (1 + accepted) / STEP_S[0],
        "difference": more - accepted,
        "speedup": (1 + more) / STEP_S[1] * BASE_STEP_S,
    }


def intervals_of_run(arms: tuple[Arm, Arm, Arm], run: int):
    """Every estimate whose truth is known."""
    first, second, base = (arm.estimates(run) for arm in arms)
    named = {name: first.estimate(name) for name in truths() if name not in ("difference", "speedup")}
    return named | {
        "difference": paired_difference(first, second, "full_draft_length"),
        "speedup": paired_ratio(base, second, "output_tokens_per_s"),
    }


def coverage(num_prompts: int, num_runs: int, seed: int = 1) -> dict[str, float]:
    """Share of runs whose interval contains the truth."""
    arms, truth = simulate(num_prompts, num_runs, seed), truths()
    held = dict.fromkeys(truth, 0)
    for run in range(num_runs):
        for name, found in intervals_of_run(arms, run).items():
            held[name] += found.low <= truth[name] <= found.high
    return {name: count / num_runs for name, count in held.items()}


def test_intervals_hold_the_truth_as_often_as_they_say():
    found = coverage(64, NUM_RUNS)
    assert all(0.93 <= share <= 0.97 for share in found.values()), found


@pytest.mark.parametrize(("num_prompts", "least"), [(8, 0.88), (MIN_PROMPTS, 0.91)])
def test_intervals_of_few_prompts_fall_short_by_little(num_prompts, least):
    """Where reports warn, and from where on they do not. 16 prompts hold .93 to .95 of these truths, 8 prompts .91 to
    .94 (4000 runs); the bounds leave 2 standard errors of 1000 runs."""
    found = coverage(num_prompts, 1000)
    assert all(least <= share <= 0.97 for share in found.values()), found


def test_resampling_rounds_would_be_overconfident():
    """The broken variant: each round a unit of its own, as if rounds of one prompt were independent."""
    num_prompts, num_rounds, num_runs = 80, 16, 200
    generator = np.random.default_rng(3)
    powers = np.arange(1, NUM_POSITIONS + 1)
    truth = 1 + float(SHARES @ (DIFFICULTIES[:, None] ** powers).sum(axis=1))
    held = np.zeros(2)
    for _ in range(num_runs):
        rates = generator.choice(DIFFICULTIES, size=num_prompts, p=SHARES)
        number = generator.geometric(1 - rates[:, None], (num_prompts, num_rounds)) - 1
        reached = (number[..., None] >= powers).astype(float)
        of_prompts, of_rounds = reached.sum(axis=1), reached.reshape(-1, NUM_POSITIONS)
        for way, (rounds, found) in enumerate(((num_rounds, of_prompts), (1, of_rounds))):
            ones = np.ones(len(found))
            _, low, high = estimates_of(rounds * ones, found, ones).estimate("full_draft_length")
            held[way] += low <= truth <= high
    by_prompt, by_round = held / num_runs
    assert by_prompt > 0.87, "5 standard errors of 200 runs below 95 %"
    assert by_round < 0.75


@pytest.mark.parametrize(
    ("low", "high", "draw"),
    [
        (0.0, 1.0, lambda generator, size: generator.beta(1, 2, size)),
        (0.0, 1.0, lambda generator, size: generator.beta(40, 2, size)),
        (1.0, 4.0, lambda generator, size: 1 + 3 * generator.beta(2, 38, size)),
        (0.0, math.inf, lambda generator, size: generator.lognormal(0.0, 0.3, size)),
        (-math.inf, math.inf, lambda generator, size: generator.normal(0.0, 1.0, size)),
    ],
    ids=["rates that differ much", "rates near 1", "lengths near 1", "throughputs", "logarithms of ratios"],
)
def test_intervals_over_few_seeds_hold_the_truth_and_stay_in_range(low, high, draw):
    """Would catch Student's t on the values themselves, which leaves the range in up to 31 % of these runs and holds
    the truth in 92 %: 3000 runs have a standard error of .004."""
    generator = np.random.default_rng(5)
    truth = float(draw(generator, 2_000_000).mean())
    runs = draw(generator, (NUM_RUNS, MIN_REPEATS))
    ends = np.array([mean_interval(values, 0.95, low, high) for values in runs])
    assert (ends[:, 0] >= low).all() and (ends[:, 1] <= high).all()
    held = float(((ends[:, 0] <= truth) & (truth <= ends[:, 1])).mean())
    assert 0.93 <= held <= 0.97
