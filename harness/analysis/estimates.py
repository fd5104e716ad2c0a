"""Every metric of a cell, with its bootstrap distribution; differences and ratios of two cells on the same prompts.

Shapes: B resamples, P prompts.
This module knows sums per prompt and the definitions; it does not know settings, files or tables.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from harness.analysis.definitions import METRICS, metric
from harness.analysis.intervals import Floats, interval, percentile_replicates, resample_weights
from harness.analysis.metric import Metric
from harness.analysis.position_metrics import position_metrics
from harness.analysis.sums import CellSums


class Estimate(NamedTuple):
    """A value and its interval; nan where undefined."""

    value: float
    low: float
    high: float


NOT_AVAILABLE = Estimate(float("nan"), float("nan"), float("nan"))


@dataclass(frozen=True)
class Estimates:
    """The metrics of one cell, or of some of its prompts."""

    sums: CellSums
    num_resamples: int
    confidence: float

    @cached_property
    def _totals(self) -> dict[str, Floats]:
        """name -> total in each resample, and after them the observed total: [B + 1]."""
        names = list(self.sums.sums)
        table = np.stack([self.sums.sums[name] for name in names], axis=1)
        resampled = self.weights @ table if self.num_prompts else np.full((self.num_resamples, len(names)), np.nan)
        observed = [self.sums.totals.get(name, total) for name, total in zip(names, table.sum(axis=0), strict=True)]
        return dict(zip(names, np.vstack([resampled, observed]).T, strict=True))

    @property
    def num_prompts(self) -> int:
        return len(self.sums.prompt_ids)

    @property
    def weights(self) -> Floats:
        """[B, P] the resamples; two cells with the same prompts have the same ones."""
        return resample_weights(self.num_prompts, self.num_resamples)

    @cached_property
    def _cache(self) -> dict[str, tuple[float, Floats]]:
        return {}

    def names(self) -> list[str]:
        """Every metric that this cell has."""
        positions = range(1, self.sums.num_positions + 1)
        return [*METRICS, *(name for position in positions for name in position_metrics(position))]

    def distribution(self, name: str) -> tuple[float, Floats]:
        """The observed value of a metric and its value in each resample [B]; nan for a position never drafted."""
        if name not in self._cache:
            item = metric(name)
            self._cache[name] = self._percentile(item, *item.percentile) if item.percentile else self.ratio(item)
        return self._cache[name]

    def estimate(self, name: str) -> Estimate:
        """A metric with its interval."""
        return self.with_interval(*self.distribution(name))

    def with_interval(self, value: float, replicates: Floats) -> Estimate:
        """A value with the interval of its resampled values."""
        return Estimate(value, *interval(replicates, self.num_prompts, self.confidence))

    def total(self, name: str) -> float:
        """An observed sum; 0 where the cell has none, nan where it is not known."""
        return float(self._totals[name][-1]) if name in self._totals else 0.0

    def ratio(self, item: Metric) -> tuple[float, Floats]:
        """Value and resampled values [B] of a metric that divides sums; nan where the cell lacks one of them."""
        wanted = [*item.numerators, *([item.denominator] if item.denominator else [])]
        if any(name not in self._totals for name in wanted):
            return float("nan"), np.full(self.num_resamples, np.nan)
        numerator = np.sum([self._totals[name] for name in item.numerators], axis=0)
        denominator = self._totals[item.denominator] if item.denominator else np.ones_like(numerator)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = item.scale * numerator / denominator
        ratio[~np.isfinite(ratio)] = np.nan
        return float(ratio[-1]), ratio[:-1]

    def _percentile(self, item: Metric, latency: str, level: float) -> tuple[float, Floats]:
        values, prompt_index = self.sums.latencies[latency]
        if len(values) == 0:
            return float("nan"), np.full(self.num_resamples, np.nan)
        replicates = percentile_replicates(values, prompt_index, self.weights, level)
        return item.scale * float(np.quantile(values, level)), item.scale * replicates


def paired(first: Estimates, second: Estimates, in_one_session: bool = False) -> tuple[Estimates, Estimates]:
    """Both cells on the prompts they have in common, with the same resamples.

    Args:
        in_one_session: leave out prompts whose requests were measured in another session in the other cell.
    """
    same_prompts = first.sums.prompt_ids == second.sums.prompt_ids
    same_sessions = first.sums.sessions == second.sums.sessions or not in_one_session
    if same_prompts and same_sessions and first.num_resamples == second.num_resamples:
        return first, second
    common = set(first.sums.prompt_ids) & set(second.sums.prompt_ids)
    if in_one_session:
        common = {item for item in common if first.sums.session_of(item) == second.sums.session_of(item)}
    prompt_ids = sorted(common)
    return (
        Estimates(first.sums.take(prompt_ids), first.num_resamples, first.confidence),
        Estimates(second.sums.take(prompt_ids), first.num_resamples, first.confidence),
    )


def paired_difference(first: Estimates, second: Estimates, name: str, across_sessions: bool = False) -> Estimate:
    """second - first of a metric, on the prompts they have in common; of a time, see `paired_ratio`."""
    return _compared(np.subtract, first, second, name, across_sessions)


def paired_ratio(first: Estimates, second: Estimates, name: str, across_sessions: bool = False) -> Estimate:
    """second / first of a metric, on the prompts they have in common.

    Times of a cell in which requests failed compare with none: those that failed were no load while they lasted.

    Args:
        across_sessions: compare times also of prompts that the cells measured in different sessions.
    """
    return _compared(np.divide, first, second, name, across_sessions)


def _compared(operation: np.ufunc, first: Estimates, second: Estimates, name: str, across_sessions: bool) -> Estimate:
    of_times = not metric(name).of_tokens
    if of_times and (first.sums.num_failed_requests or second.sums.num_failed_requests):
        return NOT_AVAILABLE
    first, second = paired(first, second, not across_sessions and of_times)
    pairs = zip(second.distribution(name), first.distribution(name), strict=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        value, replicates = (operation(mine, theirs) for mine, theirs in pairs)
    return first.with_interval(float(value), replicates)
