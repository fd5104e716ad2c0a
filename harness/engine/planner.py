"""A planner of depth: how many drafts of the next step promise most tokens per second.

With B requests and s_i the probability that the first i drafts of a round are accepted, a step of depth K emits
B (1 + s_1 + .. + s_K) tokens in t(B, K) seconds; the planner takes the K with the largest ratio. Times come from a
calibration before the clock starts, corrected by the time that steps took in addition (of this depth, as far as it was
seen; else of this batch size, else of all), or from a given table; survival from the rounds that were read, older ones
with less weight. The planner knows nothing of the step itself, so lossless methods stay lossless. With a table of times
its choices follow from the rounds alone.
Source: goodput of SmartSpec (arXiv 2406.14066), with survival by position instead of one rate for all positions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from harness.settings.step_times import StepTimes

FIRST_GUESS, GUESS_ROUNDS = 0.7, 8.0
"""Prior of the first position's acceptance rate, and the rounds that a prior counts for; the prior of a deeper position
is the rate of the one before."""
ROUNDS_KEPT = 512
"""Rounds after which the weight of a round has decayed to 1 / e."""
STEPS_KEPT = 64
"""The same of steps, for the time that they take in addition to their calibration."""
STEPS_TRUSTED = 4.0
"""Steps after which their own time counts as much as that of steps less like them."""
PROBE_EVERY, PROBE_STEPS = 64, 3
"""Of so many steps the last ones draft a token more than planned, to measure a deeper position, or in turn a token
fewer, to measure its time. The first step of another depth takes longer than those behind it, and does not count."""
MAX_OUTLIER = 1.5
"""What a step takes beyond so many times what was expected counts no further: it would hide what a draft costs."""
INTERRUPTED = 8.0
"""Steps that take this many times their calibration were interrupted and are ignored."""
LEAST_SHARE = 1 / 3
"""Of its calibration, that a step is expected to take at least."""


class _Beside:
    """Mean of the seconds that steps took in addition to their calibration; older ones count less."""

    def __init__(self) -> None:
        self._num, self._mean = 0.0, 0.0

    def add(self, seconds: float) -> None:
        self._num = min(self._num + 1, STEPS_KEPT)
        self._mean += (seconds - self._mean) / self._num

    def towards(self, other_s: float) -> float:
        """The mean, drawn towards another one while few steps were seen."""
        return (self._num * self._mean + STEPS_TRUSTED * other_s) / (self._num + STEPS_TRUSTED)


class Planner:
    """Chooses depths of 0 to K drafts."""

    def __init__(self, num_drafts: int, times: StepTimes | None = None) -> None:
        """times: None measures them, see `prepare`."""
        self._num_drafts = num_drafts
        self._times, self._corrects = times, times is None
        self._reached, self._passed = [0.0] * num_drafts, [0.0] * num_drafts
        self._beside: dict[tuple[int, ...], _Beside] = {}
        """By number of requests and depth, by number of requests, and of all steps."""
        self._num_steps, self._depth_before = 0, -1
        """Depth of the step that was read last; -1 where it read prompts too."""

    def prepare(self, measure: Callable[[Sequence[int]], StepTimes]) -> None:
        """Measure step times of some depths, the clock stopped, unless they are known."""
        if self._times is None:
            self._times = measure(range(self._num_drafts + 1))

    def choices(self, num_requests: int) -> range:
        """Any depth."""
        return range(self._num_drafts + 1)

    def choose(self, num_requests: int) -> int:
        """See harness.engine.depth.Depth."""
        self._num_steps += 1
        best = self.best(num_requests)
        if self._num_steps % PROBE_EVERY < PROBE_EVERY - PROBE_STEPS:
            return best
        probed = best + (-1 if self._num_steps // PROBE_EVERY % 2 else 1)
        return min(max(probed, 0), self._num_drafts)

    def best(self, num_requests: int) -> int:
        """The depth that promises most tokens per second; the smallest among equals."""
        promised, survival, best = 1.0, self.survival(), (0.0, 0)
        for depth in range(self._num_drafts + 1):
            promised += survival[depth - 1] if depth else 0.0
            rate = promised / self.seconds(num_requests, depth)
            best = max(best, (rate, -depth))
        return -best[1]

    def survival(self) -> list[float]:
        """[K] probability that the first 1, .. K drafts of a round are accepted."""
        found, rate, product = [], FIRST_GUESS, 1.0
        for reached, passed in zip(self._reached, self._passed, strict=True):
            rate = (passed + GUESS_ROUNDS * rate) / (reached + GUESS_ROUNDS)
            product *= rate
            found.append(product)
        return found

    def seconds(self, num_requests: int, depth: int) -> float:
        """Expected seconds of a step."""
        assert self._times is not None, "prepare comes first"
        calibrated = self._times.at(num_requests, depth)
        beside_s = 0.0
        for kind in ((), (num_requests,), (num_requests, depth)):
            if kind in self._beside:
                beside_s = self._beside[kind].towards(beside_s)
        return max(calibrated + beside_s, calibrated * LEAST_SHARE)

    def learn(self, num_requests: int, depth: int, num_accepted: Sequence[int], seconds: float | None) -> None:
        """See harness.engine.depth.Depth."""
        kept, reaching = 1 - 1 / ROUNDS_KEPT, num_accepted
        for place in range(depth):
            reached, passed = self._reached[place], self._passed[place]
            for accepted in reaching:
                reached, passed = kept * reached + 1, kept * passed + (accepted > place)
            self._reached[place], self._passed[place] = reached, passed
            reaching = [accepted for accepted in reaching if accepted > place]
        before, self._depth_before = self._depth_before, -1 if seconds is None else depth
        if seconds is None or depth != before or not self._corrects or self._times is None:
            return
        calibrated = self._times.at(num_requests, depth)
        if seconds < INTERRUPTED * calibrated:
            bounded_s = min(seconds, MAX_OUTLIER * self.seconds(num_requests, depth))
            for kind in ((), (num_requests,), (num_requests, depth)):
                self._beside.setdefault(kind, _Beside()).add(bounded_s - calibrated)
