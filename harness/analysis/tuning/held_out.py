"""A schedule beside fixed depths on load that it was not tuned on: ratios of speed with intervals over repeats.

A repeat is a block of a run, in which the cells took turns at the same conversations. The speed of a block is, where
all requests wait from the start, its output tokens / wall time; where they arrive at a rate, which then bounds the
former, its output tokens / the seconds from each request's arrival to its last token, summed: the mean speed that a
request sees, waiting included. The ratio of two cells is the geometric mean over blocks, its interval Student's t of
the logarithms. The best fixed depth is chosen on the same blocks, which makes it look a little better than it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import exp

import numpy as np

from harness.analysis.cell import CellResult
from harness.analysis.decode_steps import Floats
from harness.analysis.depth_optimum import fixed_depth
from harness.analysis.estimates import Estimate
from harness.analysis.intervals import MIN_BLOCKS, mean_interval
from harness.analysis.tuning.from_runs import SETTINGS, arrives
from harness.config.arrivals import rate_at, read_rates
from harness.config.models import with_shown_paths
from harness.records.request import RequestRecord

WITHIN = 0.97
"""Share of the best fixed depth's speed that a schedule has to reach at each load."""
WORTH_A_CHECK = 0.1
"""Fixed depths that lose more than this at every load, as measured, need not run beside the schedule."""
NO_DRAFTS = "0"
"""A schedule of plain decoding at every batch size, whose cell is the baseline."""
Key = tuple[int, str]
"""Block and session."""
PAIR = ("target", "drafter", "verification")
"""Sections in which cells of one schedule do not differ; nor do they in the temperature."""
SELECTION = ("held_out", "num_prompts", "num_requests", "request_rate", "request_rates", "shuffle", "num_turns")
"""Settings of the workload that leave its prompts what they are."""


@dataclass(frozen=True)
class HeldOut:
    """One load and the cells that ran under it."""

    scheduled: CellResult
    """The cell of the schedule, or of its only depth."""
    fixed: tuple[CellResult, ...]
    """By depth, plain decoding first."""

    @property
    def arrives(self) -> bool:
        """Whether requests arrived at a rate."""
        return arrives(self.scheduled)

    @cached_property
    def _blocks(self) -> list[Key]:
        """That every cell played."""
        found = [_speeds(cell) for cell in (self.scheduled, *self.fixed)]
        return sorted(set.intersection(*({*each} for each in found)))

    @property
    def num_repeats(self) -> int:
        return len(self._blocks)

    def speed(self, cell: CellResult) -> float:
        """Tokens per second: the geometric mean over the repeats."""
        return exp(float(np.log(self._values(cell)).mean()))

    @property
    def best(self) -> CellResult:
        """The fixed depth with the highest speed."""
        return max(self.fixed, key=self.speed)

    def ratio(self, cell: CellResult) -> Estimate:
        """Speed of the schedule over that of a fixed depth; no interval below MIN_BLOCKS repeats."""
        logs = np.log(self._values(self.scheduled) / self._values(cell))
        low, high = float("nan"), float("nan")
        if len(logs) >= MIN_BLOCKS:
            low, high = mean_interval(logs, self.scheduled.estimates.confidence)
        return Estimate(exp(float(logs.mean())), float(np.exp(low)), float(np.exp(high)))

    @property
    def is_fixed(self) -> bool:
        """Whether the schedule has one depth, so that its cell is one of the fixed ones."""
        return any(cell is self.scheduled for cell in self.fixed)

    @property
    def is_within(self) -> bool | None:
        """Whether the schedule reaches WITHIN of the best fixed depth; None where the interval does not say."""
        return True if self.best is self.scheduled else _side(self.ratio(self.best), WITHIN)

    @property
    def beats_all(self) -> bool | None:
        """Whether it is faster than every fixed depth; None where an interval does not say."""
        if self.is_fixed:
            return False
        sides = [_side(self.ratio(cell), 1.0) for cell in self.fixed]
        return False if False in sides else None if None in sides else True

    def _values(self, cell: CellResult) -> Floats:
        speeds = _speeds(cell)
        return np.array([speeds[block] for block in self._blocks])


def held_out_of(cells: Sequence[CellResult], depth: str) -> list[HeldOut]:
    """The loads under which a schedule ran beside fixed depths.

    Args:
        cells: of any runs.
        depth: the schedule, as drafting.depth takes it.

    Raises:
        ValueError: it ran nowhere, no fixed depth beside it, or its blocks are not known.
    """
    families: dict[str, list[CellResult]] = {}
    for cell in cells:
        if not cell.is_baseline and not cell.record.has_failed and not cell["tree"]:
            key = cell.key_without(*SETTINGS[:-1])
            families.setdefault(key, []).append(cell)
    found = []
    for line in families.values():
        plain = [cell.baseline for cell in line if cell.baseline is not None and not cell.baseline.record.has_failed][
            :1
        ]
        named = plain if depth == NO_DRAFTS else [cell for cell in line if _depth_of(cell) == depth]
        if not named:
            continue
        scheduled = named[0]
        fixed = [*plain, *sorted((cell for cell in line if fixed_depth(cell) is not None), key=_rank)]
        if fixed:
            found.append(HeldOut(scheduled, tuple(fixed)))
    if not found:
        depths = ", ".join(sorted({_depth_of(cell) for line in families.values() for cell in line}))
        raise ValueError(f"expected a cell of drafting.depth={depth} beside fixed depths, found {depths or 'no cells'}")
    for each in found:
        if not each.num_repeats:
            raise ValueError("expected blocks that the schedule and the fixed depths played in one session, found none")
    return found


def check_apart(measured: Sequence[CellResult], loads: Sequence[HeldOut]) -> None:
    """Raise ValueError where a load is of another pair than a schedule was tuned for, or of prompts it was tuned on.

    Args:
        measured: the cells with a drafter that the schedule is from.
        loads: those that it is checked at.
    """
    first = next(cell for cell in measured if not cell.is_baseline)
    for load in loads:
        cell = next(cell for cell in (load.scheduled, *load.fixed) if not cell.is_baseline)
        here, there = (with_shown_paths(each.record.config) for each in (cell, first))
        other = [name for name in PAIR if here[name] != there[name]]
        other += ["temperature"] if cell["temperature"] != first["temperature"] else []
        if other:
            raise ValueError(
                f"--check: expected a run of the pair that was tuned, found another {' and '.join(other)} in it"
            )
        if _source(cell) != _source(first):
            # other files, whose prompts have ids of their own
            continue
        tuned_on = {request.prompt_id for each in measured for request in each.record.requests}
        both = tuned_on & {request.prompt_id for request in cell.record.requests}
        if both:
            raise ValueError(
                f"--check: expected prompts that the schedule was not tuned on, found {len(both)} of them in both, "
                f"such as {min(both)}; run experiment=tune_check with workload.held_out, the number of prompts of the "
                "run that was tuned"
            )


def _source(cell: CellResult) -> dict[str, object]:
    """Settings that say which prompts there are."""
    return {name: value for name, value in cell.record.config["workload"].items() if name not in SELECTION}


def _rank(cell: CellResult) -> int:
    return fixed_depth(cell) or 0


def _depth_of(cell: CellResult) -> str:
    text = cell.record.config["drafting"].get("depth")
    return str(cell["num_speculative_tokens"]) if text is None else str(text)


def _speeds(cell: CellResult) -> dict[Key, float]:
    """Tokens per second of each block."""
    found: dict[Key, float] = {}
    begin = 0
    for block in cell.record.blocks:
        requests = cell.record.requests[begin : begin + block.num_requests]
        begin += block.num_requests
        if arrives(cell):
            speeds = [_speed_of_arrivals(part) for part in _by_rate(cell, requests)]
        else:
            num_tokens = sum(request.num_output_tokens for request in requests)
            speeds = [num_tokens / block.wall_s if block.wall_s > 0 else 0.0]
        if speeds and min(speeds) > 0:
            found[block.index, block.session] = exp(float(np.log(speeds).mean()))
    return found


def _speed_of_arrivals(requests: Sequence[RequestRecord]) -> float:
    """Tokens over the seconds from each request's arrival to its last token."""
    seconds = sum(request.events[-1].arrival_s - request.submitted_s for request in requests)
    return sum(request.num_output_tokens for request in requests) / seconds if seconds > 0 else 0.0


def _by_rate(cell: CellResult, requests: Sequence[RequestRecord]) -> list[list[RequestRecord]]:
    """The requests of a block by the rate at which their conversation arrived; all together at a rate that stays."""
    text = cell.record.config["workload"].get("request_rates")
    if text is None:
        return [[*requests]] if requests else []
    rates = read_rates(text)
    begins: dict[tuple[str, int], float] = {}
    for request in requests:
        key = request.prompt_id, request.sample
        begins[key] = min(begins.get(key, request.submitted_s), request.submitted_s)
    rate_of = {key: rate_at(rates, place) for place, key in enumerate(sorted(begins, key=begins.__getitem__))}
    parts: dict[float, list[RequestRecord]] = {}
    for request in requests:
        parts.setdefault(rate_of[request.prompt_id, request.sample], []).append(request)
    return list(parts.values())


def _side(estimate: Estimate, bound: float) -> bool | None:
    """On which side of a bound an interval lies."""
    return True if estimate.low >= bound else False if estimate.high < bound else None
