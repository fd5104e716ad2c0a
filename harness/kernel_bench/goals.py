"""The goals that the sampling core was given on one H200, and whether a run meets them.

They hold for K = 3, V = 128,256, bfloat16, T = 0.7 and about 1.5 accepted tokens a request, timing overhead included.
Reads results only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from harness.kernel_bench.case import Case, Truncation, Work
from harness.kernel_bench.records import KernelResults, Measurement
from kernels.contract import VerificationMethod

TIMES_US = {16: 16.0, 64: 36.0, 256: 100.0}
"""Requests -> time of probabilistic verification."""
BANDWIDTH_SHARE = 0.92
BLOCK_RATIO, TOP_P_RATIO = 1.7, 2.5
DRAW_US = 35.0
DRAW = Case(work=Work.draw, width=0, vocab_size=151_936)
WORKSPACE_SHARE, EXTRA_BYTES = 0.01, 8e6
CORE_NAMES = ("triton", "reference")


class Goal(NamedTuple):
    """One goal and what was measured."""

    what: str
    wanted: str
    found: str
    met: bool


def core_measurements(results: KernelResults) -> list[Measurement]:
    """Those of the project's own core that have a time."""
    return [each for each in results.measurements if each.implementation in CORE_NAMES and each.timing is not None]


def bytes_per_second(num_bytes: int | None, measurement: Measurement) -> float | None:
    """How fast the bytes moved, in the median time."""
    if num_bytes is None or measurement.timing is None:
        return None
    return num_bytes / (1e-6 * measurement.timing.median_us)


def goals(results: KernelResults) -> list[Goal]:
    """Every goal whose cases this run measured."""
    found = {each.case: each for each in core_measurements(results)}
    return [*_times(found), *_bandwidth(found, results.machine.read_bandwidth), *_ratios(found), *_memory(found)]


def _us(measurement: Measurement) -> float:
    assert measurement.timing is not None
    return measurement.timing.median_us


def _times(found: dict[Case, Measurement]) -> list[Goal]:
    wanted = [(Case(num_requests=count), f"probabilistic, {count} requests", time) for count, time in TIMES_US.items()]
    wanted.append((DRAW, "draw of 256 x 151,936", DRAW_US))
    return [
        Goal(what, f"{time:g} us", f"{_us(found[case]):.1f} us", _us(found[case]) <= time)
        for case, what, time in wanted
        if case in found
    ]


def _bandwidth(found: dict[Case, Measurement], ceiling: float | None) -> list[Goal]:
    case = Case()
    if case not in found or ceiling is None:
        return []
    credited = bytes_per_second(found[case].bytes_all_rows, found[case])
    moved = bytes_per_second(found[case].bytes_needed, found[case])
    assert credited is not None and moved is not None
    share = credited / ceiling
    what = "probabilistic, 256 requests, of the measured read bandwidth (all rows, equivalent)"
    shown = f"{100 * share:.0f} %; {100 * moved / ceiling:.0f} % with the bytes that must move"
    return [Goal(what, f"{100 * BANDWIDTH_SHARE:.0f} %", shown, share >= BANDWIDTH_SHARE)]


def _ratios(found: dict[Case, Measurement]) -> list[Goal]:
    goals = []
    for count in TIMES_US:
        plain = Case(num_requests=count)
        for case, name, most in (
            (replace(plain, method=VerificationMethod.block), "block", BLOCK_RATIO),
            (replace(plain, truncation=Truncation.top_p), "top-p 0.95", TOP_P_RATIO),
        ):
            if plain in found and case in found:
                ratio = _us(found[case]) / _us(found[plain])
                what = f"{name} over probabilistic, {count} requests"
                goals.append(Goal(what, f"{most:g}", f"{ratio:.2f}", ratio <= most))
    return goals


def _memory(found: dict[Case, Measurement]) -> list[Goal]:
    goals = []
    shares = {each.case: each.workspace_bytes / each.case.logits_bytes for each in _of_goals(found)
              if each.workspace_bytes is not None}  # fmt: skip
    if shares:
        largest = max(shares, key=lambda case: shares[case])
        what = f"workspace of the logits, at most ({largest.name})"
        met = shares[largest] < WORKSPACE_SHARE
        goals.append(Goal(what, f"< {100 * WORKSPACE_SHARE:g} %", f"{100 * shares[largest]:.2f} %", met))
    extra = found[Case()].extra_bytes if Case() in found else None
    if extra is not None:
        what = "extra memory of probabilistic, 256 requests"
        goals.append(Goal(what, f"< {EXTRA_BYTES / 1e6:g} MB", f"{extra / 1e6:.2f} MB", extra < EXTRA_BYTES))
    return goals


def _of_goals(found: dict[Case, Measurement]) -> Sequence[Measurement]:
    """The cases that some goal is set for."""
    plain = [Case(num_requests=count) for count in TIMES_US]
    block = [replace(case, method=VerificationMethod.block) for case in plain]
    cut = [replace(case, truncation=Truncation.top_p) for case in plain]
    return [found[case] for case in [*plain, *block, *cut, DRAW] if case in found]
