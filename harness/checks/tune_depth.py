"""Tunes the draft depth of an engine of ours from the first step to the last: measures, chooses, and checks the choice.

One run for each load measures acceptance and round times on some prompts (experiment=tune); another one then holds the
schedule against the fixed depths on the other prompts (experiment=tune_check), in turns, with a block for each repeat:
so many requests in flight, and Poisson arrivals whose rate moves between these. This module does not know how anything
is printed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from harness.analysis.results import Results, read_results
from harness.analysis.tuning.from_runs import Measured
from harness.analysis.tuning.held_out import NO_DRAFTS, WORTH_A_CHECK, HeldOut, held_out_of
from harness.analysis.tuning.schedule import Schedule
from harness.config.arrivals import rates_name
from harness.config.schema import SettingsError
from harness.runner.check_plan import check_plan
from harness.runner.plan.compose import compose_plan
from harness.runner.plan.run_plan import Resume
from harness.runner.whole_run import run_and_report

MOST_ARRIVING = 0.9
"""Of the requests per second that the engine served at the largest load: the rate of arrivals there. At the full rate
the queue would grow without end."""
ARRIVING_SLOTS, ARRIVING_TURNS = 6, 16
"""Requests of a repeat at each rate of arrivals, at least: in those of a slot, and for each request in flight there,
since a load that few requests make is over before it is reached."""
ABOUT = (
    *("experiment", "name", "drafting.depth", "backend.max_concurrency", "measurement.num_blocks"),
    *("measurement.baseline", "workload.num_requests", "workload.request_rate", "workload.request_rates"),
    "workload.held_out",
)
"""Settings that this command sets itself."""
PROMPTS = "workload.num_prompts"
DEPTHS = "drafting.num_speculative_tokens"


@dataclass(frozen=True)
class Loads:
    """What a schedule is checked at."""

    in_flight: tuple[int, ...] = (1, 8, 32)
    """Requests in flight; the arrivals move between these."""
    repeats: int = 5
    requests: int = 20
    """Of a slot in a repeat; those of one slot have twice as many."""

    def __post_init__(self) -> None:
        grows = all(low < high for low, high in pairwise(self.in_flight))
        if len(self.in_flight) < 2 or self.in_flight[0] < 1 or not grows:
            raise SettingsError(f"--loads: expected two numbers or more that grow, found {_words(self.in_flight)}")
        if self.repeats < 1 or self.requests < 1:
            raise SettingsError(f"--repeats, --requests: expected 1 or more, found {self.repeats}, {self.requests}")

    def num_measured(self, in_flight: int) -> int:
        """Requests of each depth where acceptance and times are measured."""
        return self.requests * max(2 * in_flight, 8)

    def num_requests(self, in_flight: int) -> int:
        """Of all repeats."""
        return self.repeats * self.requests * max(in_flight, 2)


def check_overrides(overrides: Sequence[str]) -> None:
    """Raise SettingsError for settings that the command sets itself, and for prompts that leave none to check on."""
    for override in overrides:
        key, _, value = override.partition("=")
        if key.lstrip("+") in ABOUT:
            raise SettingsError(
                f"{key.lstrip('+')}: expected no such setting, since tune sets it; --help lists its options"
            )
        if key.lstrip("+") == PROMPTS and not value.isdecimal():
            raise SettingsError(f"{PROMPTS}: expected how many prompts are tuned on, the others being for the check, "
                                f"found {value}")  # fmt: skip


def on_other_prompts(overrides: Sequence[str]) -> list[str]:
    """Settings of the check for those of the measurement: the prompts that it takes are the ones to leave out, and
    depths are those of the schedule and beside it."""
    found = []
    for override in overrides:
        key, _, value = override.partition("=")
        if key.lstrip("+") != DEPTHS:
            found.append(f"workload.held_out={value}" if key.lstrip("+") == PROMPTS else override)
    return found


def check_before(name: str, overrides: Sequence[str], loads: Loads) -> None:
    """Look at what all runs need, prompts for the check among them, before the first one measures.

    Raises:
        SettingsError: settings are wrong, or no prompt is left to check on.
    """
    for experiment, own in (("tune", overrides), ("tune_check", on_other_prompts(overrides))):
        size = f"backend.max_concurrency={loads.in_flight[-1]}"
        check_plan(compose_plan([f"experiment={experiment}", f"name={name}", size, *own]))


def measure(name: str, overrides: Sequence[str], loads: Loads, fresh: bool) -> list[Path]:
    """Run experiment=tune at every load; returns the folders of the runs.

    Raises:
        SettingsError: settings are wrong.
        ValueError: a cell failed.
    """
    folders = []
    for in_flight in loads.in_flight:
        own = [f"name={name}_measured_{in_flight}", f"backend.max_concurrency={in_flight}"]
        own.append(f"workload.num_requests={loads.num_measured(in_flight)}")
        folders.append(_run(["experiment=tune", *own, *overrides], fresh))
    return folders


def check(name: str, overrides: Sequence[str], loads: Loads, measured: Measured, fresh: bool) -> tuple[HeldOut, ...]:
    """Run experiment=tune_check at every load; nothing where no depth is worth a check beside plain decoding.

    Raises:
        ValueError: a cell failed.
    """
    schedule, overrides = Schedule(measured.rates), on_other_prompts(overrides)
    depths = [str(depth) for depth in worth_a_check(schedule, loads.in_flight) if depth]
    with_none = 0 in worth_a_check(schedule, loads.in_flight)
    named = [f'"{depth}"' for depth in depths]
    if schedule.text not in (*depths, NO_DRAFTS):
        named.append(schedule.text)
    if not named:
        return ()
    own = [
        f"drafting.depth={','.join(named)}",
        f"measurement.num_blocks={loads.repeats}",
        f"measurement.baseline={str(with_none).lower()}",
    ]
    found: list[HeldOut] = []
    arrivals = arrivals_of(measured, loads)
    num_requests = loads.repeats * sum(count for _, count in arrivals)
    moving = [
        f"backend.max_concurrency={loads.in_flight[-1]}",
        f"workload.num_requests={num_requests}",
        f"workload.request_rates={rates_name(arrivals)}",
    ]
    # first what a schedule is for
    moves = _held_out(["experiment=tune_check", f"name={name}_moving", *own, *moving, *overrides], schedule, fresh)
    for in_flight in loads.in_flight:
        size = [f"backend.max_concurrency={in_flight}", f"workload.num_requests={loads.num_requests(in_flight)}"]
        found += _held_out(["experiment=tune_check", f"name={name}_at_{in_flight}", *own, *size, *overrides],
                           schedule, fresh)  # fmt: skip
    return (*found, *moves)


def worth_a_check(schedule: Schedule, in_flight: Sequence[int]) -> list[int]:
    """Depths that lose at most WORTH_A_CHECK at some load, and those of the schedule, between the loads too."""
    # of a load the mean of its steps may be the largest measured size
    choices = [schedule.choice(min(size, schedule.largest)) for size in in_flight]
    scheduled = {depth for _, depth in schedule.table}
    return [
        depth
        for depth in schedule.rates.depths
        if depth in scheduled or any(choice.regrets[depth].value <= WORTH_A_CHECK for choice in choices)
    ]


def arrivals_of(measured: Measured, loads: Loads) -> tuple[tuple[float, int], ...]:
    """Rates at which so many requests are in flight, by what the engine served at the best depth there, up and down.

    By Little's law as many are in flight where they arrive as fast as they were served.
    """
    rates = []
    for in_flight in loads.in_flight:
        served = [cell.estimates.distribution("requests_per_s")[0] for cell in measured.cells
                  if int(cell["max_concurrency"]) == in_flight]  # fmt: skip
        rates.append(max(served) * (MOST_ARRIVING if in_flight == loads.in_flight[-1] else 1))
    counts = [max(ARRIVING_SLOTS * loads.requests, ARRIVING_TURNS * in_flight) for in_flight in loads.in_flight]
    return tuple((float(f"{rate:.3g}"), count) for rate, count in zip(rates, counts, strict=True))


def _held_out(overrides: Sequence[str], schedule: Schedule, fresh: bool) -> list[HeldOut]:
    return held_out_of(read_results(_run(overrides, fresh)).cells, schedule.text)


def _run(overrides: Sequence[str], fresh: bool) -> Path:
    plan = replace(compose_plan(overrides), resume=Resume(fresh))
    seen: list[Results] = []
    run_and_report(plan, seen.append)
    failed = [cell for results in seen for cell in results.cells if cell.record.has_failed]
    if failed:
        raise ValueError(f"{plan.folder}: {len(failed)} cells failed; its report says why")
    return plan.folder


def _words(numbers: Sequence[int]) -> str:
    return " ".join(map(str, numbers)) or "nothing"
