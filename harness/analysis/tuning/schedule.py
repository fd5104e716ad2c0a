"""The best depth for each batch size, what other depths lose beside it, and a schedule of few changes.

The best depth is that of the least observed cost (`rates.py`), at every whole batch size from 1 to the largest. What
another one loses is its regret, 1 - its tokens per second / those of the best, with an interval from the same resamples
for both; where the interval reaches 0 the two are statistically indistinguishable. The best is chosen on the data that
regrets are computed from, so they are a little too large.
A schedule keeps the depth of the smaller batch while that is indistinguishable from the best and loses at most KEPT,
since each change is a guess where the data see no difference.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from harness.analysis.decode_steps import Floats
from harness.analysis.estimates import Estimate
from harness.analysis.tuning.rates import DepthRates
from harness.config.depth import DepthTable, depth_at

KEPT = 0.005
"""Regret up to which a schedule keeps the depth of the smaller batch where the data do not tell it from the best."""


@dataclass(frozen=True)
class Choice:
    """Of one batch size."""

    size: int
    """Requests that decode."""
    best: int
    scheduled: int
    """Depth of the schedule."""
    tokens_per_s: Estimate
    """Of the best depth, all requests together."""
    regrets: Mapping[int, Estimate]
    """Depth -> what it loses beside the best."""
    shares_best: Mapping[int, float]
    """Depth -> share of the resamples in which it is the best."""

    @property
    def indistinguishable(self) -> tuple[int, ...]:
        """Other depths that the data do not tell from the best; none where nothing has an interval."""
        return tuple(depth for depth, regret in self.regrets.items() if depth != self.best and regret.low <= 0)


@dataclass(frozen=True)
class Schedule:
    """Depths by batch size."""

    rates: DepthRates

    @property
    def largest(self) -> int:
        """The largest measured batch; beyond it its depth is only carried on."""
        return self.rates.sizes[-1]

    @cached_property
    def _costs(self) -> Floats:
        """[R + 1, D, 1 .. largest]."""
        return self.rates.costs(tuple(range(1, self.largest + 1)))

    def _regrets(self, size: int) -> Floats:
        """[R + 1, D] beside the depth that was observed to be the best."""
        costs = self._costs[:, :, size - 1]
        found: Floats = 1 - costs[:, [int(costs[-1].argmin())]] / costs
        return found

    @cached_property
    def table(self) -> DepthTable:
        """(batch size, drafts of a round from that number on), growing."""
        found: list[tuple[int, int]] = []
        for size in range(1, self.largest + 1):
            regrets = self._regrets(size)
            if found:
                kept = self.rates.depths.index(found[-1][1])
                loss = self.rates.estimate(regrets[:, kept])
                # without intervals only a tie is kept
                if loss.value <= KEPT and (loss.low <= 0 or loss.value == 0):
                    continue
            found.append((size, self.rates.depths[int(regrets[-1].argmin())]))
        return tuple(found)

    @property
    def text(self) -> str:
        """As `drafting.depth` takes it."""
        depths = {depth for _, depth in self.table}
        return str(*depths) if len(depths) == 1 else "/".join(f"{size}:{depth}" for size, depth in self.table)

    @cached_property
    def one_depth(self) -> tuple[int, Estimate]:
        """The depth that alone loses least at the measured batch sizes, and what it loses there beside the best of
        each: 1 - the geometric mean of its tokens per second over theirs. No schedule gains more on it there. Each
        resample has its own best depth of each batch size, so that the interval's end holds what the data may have
        missed; the depth that loses is that of the data in all of them."""
        logs = np.log(self.rates.costs(self.rates.sizes))
        losses = 1 - np.exp((logs.min(axis=1, keepdims=True) - logs).mean(axis=2))
        least = int(losses[-1].argmin())
        return self.rates.depths[least], self.rates.estimate(losses[:, least])

    @cached_property
    def choices(self) -> tuple[Choice, ...]:
        """At the measured batch sizes."""
        return tuple(self.choice(size) for size in self.rates.sizes)

    def choice(self, size: int) -> Choice:
        """At any batch size up to the largest."""
        depths, costs, regrets = self.rates.depths, self._costs[:, :, size - 1], self._regrets(size)
        best = int(costs[-1].argmin())
        counts = np.bincount(costs[:-1].argmin(axis=1), minlength=len(depths)) / max(len(costs) - 1, 1)
        return Choice(
            size,
            best=depths[best],
            scheduled=depth_at(self.table, size),
            tokens_per_s=self.rates.estimate(size / costs[:, best]),
            regrets={depth: self.rates.estimate(regrets[:, place]) for place, depth in enumerate(depths)},
            shares_best=dict(zip(depths, counts.tolist(), strict=True)),
        )
