"""What an engine reaches by batch size and depth: tokens of a round, seconds of a round, and what a token costs.

With B requests a step of depth K emits B L(K) tokens in t(B, K) seconds, L(K) = 1 + a_1 + .. + a_K with a_i the
probability that the first i drafts are accepted. The best depth has the least t(B, K) / L(K) + r(B, K): the rule of
renewal and reward, since rounds follow one another (goodput of SmartSpec, arXiv 2406.14066, with measured survival by
position). r is what reading prompts adds: while a request with n decoded tokens is served by an engine of B, B others
end and B prompts are read, which adds B e(K) seconds for e(K) of each, so r(B, K) = B e(K) / n.
Between measured batch sizes this cost lies on the line through both; beyond them it is that of the nearest.
Shapes: R resamples and the observed values behind them, D depths, S batch sizes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from harness.analysis.decode_steps import Floats
from harness.analysis.estimates import Estimate
from harness.analysis.intervals import interval


@dataclass(frozen=True)
class DepthRates:
    """Of one engine at one temperature and workload."""

    depths: tuple[int, ...]
    """Growing; 0 is plain decoding."""
    sizes: tuple[int, ...]
    """Measured numbers of decoding requests; growing."""
    tokens: Floats
    """[R + 1, D, S] that a round emits, the recovered or bonus token included."""
    seconds: Floats
    """[R + 1, D, S] of a step, whose rounds each of the requests has one of."""
    num_units: int
    """What was drawn again for the resamples, such as prompts; below 2 nothing has an interval."""
    confidence: float
    reading: Floats | None = None
    """[R + 1, D, S] seconds that a request waits for each of its tokens in addition, since the step reads prompts; None
    where `seconds` holds all of a step."""

    def __post_init__(self) -> None:
        shape = (len(self.tokens), len(self.depths), len(self.sizes))
        assert self.tokens.shape == self.seconds.shape == shape, "one value for each depth and size"
        assert self.reading is None or self.reading.shape == shape, "one value for each depth and size"

    def costs(self, sizes: tuple[int, ...]) -> Floats:
        """[R + 1, D, given sizes] seconds that a request waits for a token."""
        known = self.seconds / self.tokens + (0 if self.reading is None else self.reading)
        # [S, given sizes]: what a measured size counts at a given one
        lines = np.stack([np.interp(sizes, self.sizes, row) for row in np.eye(len(self.sizes))])
        found: Floats = known @ lines
        return found

    def estimate(self, values: Floats) -> Estimate:
        """The observed value behind the resampled ones [R + 1], with its interval where units were drawn."""
        return Estimate(float(values[-1]), *interval(values[:-1], self.num_units, self.confidence))
