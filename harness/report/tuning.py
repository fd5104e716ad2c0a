"""The page of a tuned depth: what each depth loses at each batch size, the schedule, and how it does on held-out load.

This module knows what to show; it does not know how depths are chosen, nor where files lie.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from pathlib import Path
from typing import Any

from harness.analysis.cell import CellResult
from harness.analysis.depth_optimum import fixed_depth
from harness.analysis.estimates import Estimate
from harness.analysis.intervals import MIN_BLOCKS
from harness.analysis.tuning.from_files import KEYS, Given
from harness.analysis.tuning.from_runs import Measured
from harness.analysis.tuning.held_out import WITHIN, WORTH_A_CHECK, HeldOut
from harness.analysis.tuning.schedule import KEPT, Schedule
from harness.report.cell_names import drafter_name, in_flight
from harness.report.console import print_table
from harness.report.document import Document, Section, write_report
from harness.report.number_format import Number
from harness.report.schedule_formats import ABOUT_VLLM, CHECKED_AGAINST, about_sglang, files, ours
from harness.report.table import NONE, Entry, Table

CHOICE_NOTES = (
    "requests: that decode in a step. tokens/s: requests / seconds that each waits for a token, of the best depth: "
    "those of a step over the tokens of a round and, of this engine's runs, what reading prompts adds. "
    "best: the depth with most of them; in brackets its share of the bootstrap resamples. regret: what a depth loses "
    "beside the best, in percent of its tokens/s; an interval that reaches 0 means that the two are statistically "
    "indistinguishable.",
    "scheduled: the depth of the schedule, which keeps that of the smaller batch while it is indistinguishable from "
    f"the best and loses at most {KEPT:.1%}. Between measured sizes costs lie on a line; beyond the largest the last "
    "depth goes on.",
    "The best is chosen on the data that regrets come from, so they are a little too large. Intervals do not hold the "
    "drift of the machine.",
)
HELD_OUT_NOTES = (
    "arrivals: Poisson, RATE:CONVERSATIONS of each repeat, conversations per second and how many arrive at this rate. "
    "speed: where all requests wait from the start, output tokens / wall time; where they arrive, output tokens / "
    "seconds from each request's arrival to its last token, waiting included, of the requests of each rate, and the "
    "geometric mean over the rates, so that all count alike. Geometric means over the repeats, in which the depths "
    "took turns at the same conversations. schedule / it: ratio of speeds, with Student's t over the repeats; none "
    f"below {MIN_BLOCKS} of them.",
    "The best fixed depth is chosen on the same repeats, which makes it look a little better than it is. Every fixed "
    f"depth is every one that ran: `--measure` leaves out those that lost more than {WORTH_A_CHECK:.0%} at every load "
    "when they were measured.",
)
STEM = "tuned"


@dataclass(frozen=True)
class Tuned:
    """A schedule and where it comes from."""

    title: str
    """Of its setting, such as the drafter and the temperature."""
    schedule: Schedule
    how: str
    held_out: tuple[HeldOut, ...] = ()
    notes: tuple[str, ...] = ()
    """What was left out."""
    provenance: tuple[Mapping[str, Any], ...] = ()
    """Of the cells."""


def tuned_of(measured: Measured | Given, held_out: Sequence[HeldOut] = ()) -> Tuned:
    """The schedule of what was measured, or given."""
    schedule = Schedule(measured.rates)
    if isinstance(measured, Given):
        named = [f"{name} {value}" for name, value in zip(KEYS, measured.key, strict=True) if value]
        return Tuned(", ".join(named) or "as measured elsewhere", schedule, measured.how, tuple(held_out))
    cell = measured.cells[0]
    parts = [cell["target"], drafter_name(cell), cell.method, f"{cell['draft_sampling']} drafts"]
    title = ", ".join([*parts, f"T = {cell['temperature']:g}"])
    disturbed = sum(bool(cell.disturbed) for cell in measured.cells)
    notes = [f"{disturbed} of {len(measured.cells)} cells were disturbed while they were measured: run them again"]
    notes = notes if disturbed else []
    notes += [
        f"left out: {depth_name(other)} with {in_flight(other['max_concurrency'])} ({why})"
        for other, why in measured.left_out
    ]
    return Tuned(title, schedule, measured.how, tuple(held_out), tuple(notes), _provenance(measured, held_out))


def _provenance(measured: Measured, held_out: Sequence[HeldOut]) -> tuple[Mapping[str, Any], ...]:
    cells = [*measured.cells, *(cell for load in held_out for cell in (load.scheduled, *load.fixed))]
    return tuple(provenance for cell in cells for provenance in cell.record.provenances)


def document(found: Sequence[Tuned], command: str) -> Document:
    """The page of some schedules."""
    return Document(
        "Draft depth by batch size",
        facts=(("Command", f"`{command}`"),),
        sections=tuple(section for tuned in found for section in sections(tuned)),
        provenance=[each for tuned in found for each in tuned.provenance],
    )


def write_tuned(found: Sequence[Tuned], folder: Path, command: str) -> list[Path]:
    """Write the page, and each schedule for engines; with several, their names begin with 1_, 2_, ..

    Returns:
        The paths, that of the page first.
    """
    beside: dict[str, str] = {}
    for place, tuned in enumerate(found, start=1):
        prefix = "" if len(found) == 1 else f"{place}_"
        table = tuned.schedule.table
        beside |= {f"{prefix}{name}": text for name, text in files(table, tuned.schedule.largest).items()}
    return write_report(document(found, command), folder, STEM, beside)


def print_tuned(tuned: Tuned) -> None:
    """Print the answer and its tables."""
    print(f"{tuned.title}")
    print(*(f"  {line.replace('`', '')}" for line in sentences(tuned)), sep="\n")
    print_table(choice_table(tuned.schedule))
    if tuned.held_out:
        print_table(held_out_table(tuned.held_out))
    for name, text in files(tuned.schedule.table, tuned.schedule.largest).items():
        print(f"{name}: {text.strip()}")


def sections(tuned: Tuned) -> list[Section]:
    """Parts of a document on one schedule."""
    schedule = tuned.schedule
    tables = files(schedule.table, schedule.largest)
    entries: list[tuple[str, tuple[str, ...]]] = [("Rejection Lab", (f"`drafting.depth={ours(schedule.table)}`",))]
    if "vllm.json" in tables:
        entries.append(("vLLM", (f"`{tables['vllm.json'].strip()}`", ABOUT_VLLM)))
    entries.append(("SGLang", (f"`{tables['sglang.json'].strip()}`", about_sglang(schedule.table))))
    found = [
        Section(
            f"Best depth by batch size: {tuned.title}",
            paragraphs=tuple(sentences(tuned)),
            tables=(choice_table(schedule), regret_table(schedule)),
            below=(f"Measured: {tuned.how}.", *tuned.notes),
        ),
        Section("The schedule for engines", entries=tuple(entries), below=(CHECKED_AGAINST,)),
    ]
    if tuned.held_out:
        found.append(Section("On held-out load", tables=(held_out_table(tuned.held_out),)))
    return found


def sentences(tuned: Tuned) -> list[str]:
    """The answer, and what held-out load says of it."""
    schedule = tuned.schedule
    found = [f"Schedule: `{ours(schedule.table)}` ({_in_words(schedule)})."]
    ties = [choice for choice in schedule.choices if choice.indistinguishable]
    if schedule.rates.num_units < 2:
        found.append("Nothing has an interval: prompts are not named, so that no two depths can be told apart.")
    elif ties:
        at = "; ".join(f"{choice.size}: {_depths((choice.best, *choice.indistinguishable))}" for choice in ties)
        found.append(f"Statistically indistinguishable at these batch sizes: {at}.")
    if len(schedule.rates.sizes) > 1:
        depth, loss = schedule.one_depth
        shown = _number(_percent(loss), "length", schedule.rates.num_units > 1)
        found.append(
            f"One depth for all, K = {depth}, loses {shown} % beside the best of each measured batch size, in the "
            "mean: a schedule cannot gain more there."
        )
    if not tuned.held_out:
        return [*found, "Not checked on held-out load."]
    for load in tuned.held_out:
        found.append(verdict(load))
    return found


def verdict(load: HeldOut) -> str:
    """One sentence on one load."""
    ratio, best = load.ratio(load.best), depth_name(load.best)
    interval = "" if isnan(ratio.low) else f" [{ratio.low:.3f}, {ratio.high:.3f}]"
    if load.is_fixed:
        reached = f"{ratio.value:.3f}{interval} of the best fixed one, {best}"
        return f"{load_name(load)}: the schedule is one depth, at {reached}."
    within = {
        True: f"within {1 - WITHIN:.0%} of the best fixed depth",
        False: f"more than {1 - WITHIN:.0%} below the best fixed depth",
        None: f"whether within {1 - WITHIN:.0%} of the best fixed depth the repeats do not say",
    }[load.is_within]
    beats = {True: "faster than every fixed depth", False: "not faster than every fixed depth", None: ""}[
        load.beats_all
    ]
    beats = beats or "whether faster than every fixed depth the repeats do not say"
    return f"{load_name(load)}: {ratio.value:.3f}{interval} times the speed of {best}: {within}; {beats}."


def load_name(load: HeldOut) -> str:
    """The load in words."""
    config = load.scheduled.record.config
    rates = config["workload"].get("request_rates") or config["workload"].get("request_rate")
    slots = config["backend"]["max_concurrency"]
    return f"arrivals {rates} in {slots} slots" if rates else in_flight(slots)


def depth_name(cell: CellResult) -> str:
    """K of a fixed depth."""
    return "no drafts" if cell.is_baseline else f"K = {fixed_depth(cell)}"


def choice_table(schedule: Schedule) -> Table:
    """One row a measured batch size."""
    rows = []
    # beside dashes a number without an interval would stand above the table, as that of all rows
    no_depth = NONE if schedule.rates.num_units > 1 else "none"
    for choice in schedule.choices:
        depths = list(schedule.rates.depths)
        place = depths.index(choice.best)
        beside = [depths[each] if 0 <= each < len(depths) else None for each in (place - 1, place + 1)]
        share = choice.shares_best[choice.best]
        has_interval = schedule.rates.num_units > 1
        rows.append((
            Number(choice.size, style="count"),
            f"{choice.best} ({share:.0%})" if has_interval else str(choice.best),
            _number(choice.tokens_per_s, "significant", has_interval),
            *(no_depth if depth is None else _regret(choice.regrets[depth], depth, has_interval) for depth in beside),
            _depths(choice.indistinguishable) or ("none" if has_interval else NONE),
            str(choice.scheduled),
        ))  # fmt: skip
    header = ("requests", "best", "tokens/s", "regret of the depth below (%)", "regret of the depth above (%)")
    return Table("Best depth", (*header, "indistinguishable", "scheduled"), tuple(rows), CHOICE_NOTES)


def regret_table(schedule: Schedule) -> Table:
    """What each depth loses at each measured batch size."""
    has_interval = schedule.rates.num_units > 1
    rows = [
        (
            Number(choice.size, style="count"),
            *(
                "best" if depth == choice.best else _number(_percent(regret), "length", has_interval)
                for depth, regret in choice.regrets.items()
            ),
        )
        for choice in schedule.choices
    ]
    header = ("requests", *(f"K = {depth}" for depth in schedule.rates.depths))
    return Table("Regret of each depth (%)", header, tuple(rows))


def held_out_table(loads: Sequence[HeldOut]) -> Table:
    """Each load with each depth."""
    rows: list[tuple[Entry, ...]] = []
    for load in loads:
        name = load_name(load)
        shown = [("schedule", load.scheduled)] if not load.is_fixed else []
        for depth, cell in [*shown, *((depth_name(cell), cell) for cell in load.fixed)]:
            ratio = NONE if cell is load.scheduled else Number(*load.ratio(cell), style="length", decimals=3)
            rows.append((name, depth, Number(load.speed(cell)), ratio, Number(load.num_repeats, style="count")))
    return Table(
        "Held-out load", ("load", "depth", "speed (tok/s)", "schedule / it", "repeats"), tuple(rows), HELD_OUT_NOTES
    )


def _in_words(schedule: Schedule) -> str:
    table = schedule.table
    if len(table) == 1:
        return f"one depth for all batch sizes up to {schedule.largest}"
    ends = [f"to {size - 1}" for size, _ in table[1:]] + ["on"]
    parts = zip(table, ends, strict=True)
    return ", ".join(f"{_drafts(depth)} from {size} {end}" for (size, depth), end in parts)


def _drafts(depth: int) -> str:
    return {0: "no drafts", 1: "1 draft"}.get(depth, f"{depth} drafts")


def _depths(depths: Sequence[int]) -> str:
    return ", ".join(f"K = {depth}" for depth in depths)


def _percent(estimate: Estimate) -> Estimate:
    return Estimate(*(100 * value for value in estimate))


def _regret(estimate: Estimate, depth: int, has_interval: bool) -> Number:
    return Number(*_shown(_percent(estimate), has_interval), style="length", note=f"K = {depth}")


def _number(estimate: Estimate, style: str, has_interval: bool) -> Number:
    return Number(*_shown(estimate, has_interval), style=style)


def _shown(estimate: Estimate, has_interval: bool) -> tuple[float, float | None, float | None]:
    return (estimate.value, estimate.low, estimate.high) if has_interval else (estimate.value, None, None)
