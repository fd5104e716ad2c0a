"""A planner of depth: how many drafts of the next step promise most tokens per second.

With B requests and s_i the probability that the first i drafts of a round are accepted, a step of depth K emits
B (1 + s_1 + .. + s_K) tokens in t(B, K) seconds; the planner takes the K with the largest ratio. Times come from a
calibration before the clock starts, or from a given table. A calibration is corrected by the time that steps took in
addition: by a line over the depth, so that steps of all depths say what a draft costs, of similar batch sizes, else of
all; and by the steps of one depth, where many were seen. Survival comes from the rounds that were read, older ones with
less weight. What prompts add to a step is taken off: an output token brings as much of it at every depth.
The planner knows nothing of the step itself, so lossless methods stay lossless. With a table of times its choices
follow from the rounds alone.
Source: goodput of SmartSpec (arXiv 2406.14066), with survival by position instead of one rate for all positions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from harness.config.step_times import StepTimes

FIRST_GUESS, GUESS_ROUNDS = 0.7, 8.0
"""Prior of the first position's acceptance rate, and the rounds that a prior counts for; the prior of a deeper position
is the rate of the one before."""
ROUNDS_KEPT = 512
"""Rounds after which the weight of a round has decayed to 1 / e."""
STEPS_KEPT = 64
"""The same of steps, for the time that they take in addition to their calibration."""
STEPS_TRUSTED, DEPTH_TRUSTED = 4.0, 16.0
"""Steps of a batch size, and of a depth, after which their own time counts as much as that of steps less like them."""
SLOPES_KEPT, SLOPE_TRUSTED = 2048, 4.0
"""As STEPS_KEPT for the time that a draft adds, which few steps tell: those of other depths than the usual one; and the
squared distance from the mean depth, summed over steps, from which on they count as much as the calibration."""
LEVEL_KEPT = 16
"""As STEPS_KEPT for the means from which a step's depth and time are told apart: few, so that what slows all steps of a
while, such as another job, is not taken for what a draft costs."""
PROMPTS_KNOWN = 32
"""Steps with prompts after which the time of a prompt token is known: from then on such steps, too, tell what a draft
adds. Before, prompts that begin as the depth falls would make shallow steps look slow, and for long."""
PLAN_EVERY = 8
"""Steps for which a choice holds, for requests of one number, and what a step is expected to take: working these out
takes longer than they may change in a step."""
PROBE_EVERY, PROBE_STEPS = 64, 3
"""Of so many steps the last ones draft a token more than planned, to measure a deeper position, or in turn a token
fewer, to measure its time. The first step of another depth takes longer than those behind it, and does not count."""
MAX_OUTLIER = 1.25
"""What a step takes beyond so many times what was expected counts no further: it would hide what a draft costs."""
INTERRUPTED = 8.0
"""Steps that take this many times their calibration were interrupted and are ignored."""
LEAST_SHARE = 1 / 3
"""Of its calibration, that a step is expected to take at least."""
LEAST_SPREAD = 0.1
"""Of their mean, by which prompt tokens must vary from step to step before that says what one takes."""


class _Beside:
    """Means of the seconds that steps took in addition to their calibration, and of the prompt tokens that they read;
    older ones count less."""

    def __init__(self) -> None:
        self.num, self.mean_s, self.mean_tokens = 0.0, 0.0, 0.0

    def add(self, seconds: float, num_tokens: int) -> tuple[float, float]:
        """Take in a step; returns what it adds to the covariance of both and to the variance of the tokens."""
        self.num = min(self.num + 1, STEPS_KEPT)
        more_s, more_tokens = seconds - self.mean_s, num_tokens - self.mean_tokens
        self.mean_s += more_s / self.num
        self.mean_tokens += more_tokens / self.num
        left = num_tokens - self.mean_tokens
        return more_s * left, more_tokens * left

    def fade(self) -> None:
        """Count less, as another step was seen that says nothing of these."""
        self.num *= 1 - 1 / SLOPES_KEPT

    def towards(self, other_s: float, token_s: float, trusted: float) -> float:
        """The mean without the prompts, drawn towards another one while few steps were seen.

        Args:
            other_s: the other one.
            token_s: seconds of a prompt token.
            trusted: steps that count as much as the other one.
        """
        own_s = self.mean_s - token_s * self.mean_tokens
        return (self.num * own_s + trusted * other_s) / (self.num + trusted)


class _Line:
    """What steps of all depths took in addition to their calibration, as a line over the depth."""

    def __init__(self) -> None:
        self._beside, self._depth = _Beside(), 0.0
        """Means of the last steps; their depth."""
        self._num, self._mean_s, self._mean_depth = 0.0, 0.0, 0.0
        """Of fewer steps, for the slope: seconds without the prompts, and depth."""
        self._covariance, self._variance = 0.0, 0.0
        """Of these; of seconds and depth, and of depth. Sums over steps."""

    def add(self, depth: int, seconds: float, num_tokens: int, token_s: float, tells_slope: bool) -> None:
        """Take in a step; see `_Beside.add`, and `towards` for token_s."""
        self._beside.add(seconds, num_tokens)
        self._depth += (depth - self._depth) / self._beside.num
        if not tells_slope:
            return
        self._num = min(self._num + 1, LEVEL_KEPT)
        more_s, more_depth = seconds - token_s * num_tokens - self._mean_s, depth - self._mean_depth
        self._mean_s += more_s / self._num
        self._mean_depth += more_depth / self._num
        kept, left = 1 - 1 / SLOPES_KEPT, depth - self._mean_depth
        self._covariance = kept * self._covariance + more_s * left
        self._variance = kept * self._variance + more_depth * left

    def towards(self, depth: int, other_s: float, token_s: float) -> float:
        """Of a depth, drawn towards another time as `_Beside.towards` does."""
        away_s = self._covariance / (self._variance + SLOPE_TRUSTED) * (depth - self._depth)
        return self._beside.towards(other_s - away_s, token_s, STEPS_TRUSTED) + away_s


class Planner:
    """Chooses depths of 0 to K drafts."""

    def __init__(self, num_drafts: int, times: StepTimes | None = None) -> None:
        """times: None measures them, see `prepare`."""
        self._num_drafts = num_drafts
        self._times, self._corrects = times, times is None
        self._reached, self._passed = [0.0] * num_drafts, [0.0] * num_drafts
        self._lines: dict[int | None, _Line] = {}
        """By group of batch sizes, and of all steps: None."""
        self._beside: dict[tuple[int, int], _Beside] = {}
        """By group of batch sizes and depth."""
        self._covariance, self._variance = 0.0, 0.0
        """Of seconds and prompt tokens, and of prompt tokens, among steps of one group and depth."""
        self._with_prompts, self._token_s = _Beside(), 0.0
        """Of steps that read prompts; seconds that a prompt token adds to a step."""
        self._calibrated: dict[int, tuple[float, ...]] = {}
        """Calibrated seconds by depth, of batch sizes that occurred."""
        self._planned: dict[int, int] = {}
        """Depths that were planned in the last steps, by batch size."""
        self._expected_s: dict[tuple[int, int], float] = {}
        """What steps were expected to take when the last few were read, by batch size and depth."""
        self._num_steps, self._num_read = 0, 0
        """Chosen, and read."""
        self._depth_before, self._read_prompts = -1, False
        """Of the last step with rounds that was read: its depth, and whether it read prompts too."""

    def prepare(self, measure: Callable[[Sequence[int]], StepTimes]) -> None:
        """Measure step times of some depths, the clock stopped, unless they are known."""
        if self._times is None:
            self._times = measure(range(self._num_drafts + 1))

    def choices(self, num_requests: int) -> range:
        """Any depth."""
        return range(self._num_drafts + 1)

    def choose(self, num_requests: int) -> int:
        """See harness.engine.depth.Depth."""
        if self._num_steps % PLAN_EVERY == 0:
            self._planned.clear()
        if num_requests not in self._planned:
            self._planned[num_requests] = self.best(num_requests)
        self._num_steps += 1
        best = self._planned[num_requests]
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
        calibrated = self._calibrated_s(num_requests, depth)
        beside_s, group = 0.0, _group(num_requests)
        for kind in (None, group):
            if kind in self._lines:
                beside_s = self._lines[kind].towards(depth, beside_s, self._token_s)
        if (group, depth) in self._beside:
            beside_s = self._beside[group, depth].towards(beside_s, self._token_s, DEPTH_TRUSTED)
        return max(calibrated + beside_s, calibrated * LEAST_SHARE)

    def learn(
        self, num_requests: int, depth: int, num_accepted: Sequence[int], seconds: float, num_prompt_tokens: int = 0
    ) -> None:
        """See harness.engine.depth.Depth."""
        self._count(depth, num_accepted)
        if self._num_read % PLAN_EVERY == 0:
            self._expected_s.clear()
        self._num_read += 1
        # the first step of another graph takes longer
        is_first = depth != self._depth_before or (self._read_prompts and not num_prompt_tokens)
        self._depth_before, self._read_prompts = depth, num_prompt_tokens > 0
        if is_first or not self._corrects or self._times is None:
            return
        calibrated = self._calibrated_s(num_requests, depth)
        if seconds >= INTERRUPTED * calibrated:
            return
        if (num_requests, depth) not in self._expected_s:
            self._expected_s[num_requests, depth] = self.seconds(num_requests, depth)
        expected_s = self._expected_s[num_requests, depth]
        if self._with_prompts.mean_tokens or not num_prompt_tokens:
            seconds = min(seconds, MAX_OUTLIER * (expected_s + self._token_s * num_prompt_tokens))
        if num_prompt_tokens:
            self._with_prompts.add(seconds - calibrated, num_prompt_tokens)
        group, tells_slope = _group(num_requests), not num_prompt_tokens or self._with_prompts.num >= PROMPTS_KNOWN
        for kind in (None, group):
            line = self._lines.setdefault(kind, _Line())
            line.add(depth, seconds - calibrated, num_prompt_tokens, self._token_s, tells_slope)
        for beside in self._beside.values():
            beside.fade()
        added = self._beside.setdefault((group, depth), _Beside()).add(seconds - calibrated, num_prompt_tokens)
        self._covariance = (1 - 1 / STEPS_KEPT) * self._covariance + added[0]
        self._variance = (1 - 1 / STEPS_KEPT) * self._variance + added[1]
        self._token_s = self._seconds_of_a_prompt_token()

    def _calibrated_s(self, num_requests: int, depth: int) -> float:
        if num_requests not in self._calibrated:
            times = self._times
            assert times is not None, "prepare comes first"
            self._calibrated[num_requests] = tuple(times.at(num_requests, each) for each in self.choices(num_requests))
        return self._calibrated[num_requests][depth]

    def _count(self, depth: int, num_accepted: Sequence[int]) -> None:
        """Take in the rounds of a step, which all count alike."""
        num_ending = [0] * (depth + 1)
        for accepted in num_accepted:
            num_ending[accepted] += 1
        num_reaching = len(num_accepted)
        for place, ending in enumerate(num_ending[:depth]):
            kept, num_passing = (1 - 1 / ROUNDS_KEPT) ** num_reaching, num_reaching - ending
            self._reached[place] = kept * self._reached[place] + num_reaching
            self._passed[place] = kept * self._passed[place] + num_passing
            num_reaching = num_passing

    def _seconds_of_a_prompt_token(self) -> float:
        """0 while no step has read one.

        Where their number hardly varies nothing tells their time from what else a step takes, which then all counts as
        theirs.
        """
        mean_s, mean_tokens = self._with_prompts.mean_s, self._with_prompts.mean_tokens
        if not mean_tokens:
            return 0.0
        weight = STEPS_KEPT * (LEAST_SPREAD * mean_tokens) ** 2
        return max(0.0, (self._covariance + weight * mean_s / mean_tokens) / (self._variance + weight))


def _group(num_requests: int) -> int:
    """Of batch sizes that are alike: those up to the next power of two."""
    return (num_requests - 1).bit_length()
