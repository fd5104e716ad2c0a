"""Acceptance numbers of another tool in our definitions: which it has, which follow from them, and which do not.

A reader of a foreign file (`harness.backends.foreign`) gives sums under our names, or a metric where the file has no
sums; here they become the metrics of `harness.analysis.definitions`, with intervals where sums are known by request.
This module knows no tool and no format.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING

from harness.records.counts import DraftCounts

if TYPE_CHECKING:
    from harness.analysis.estimates import Estimates

COUNTS = {
    "num_requests": "requests",
    "num_drafts": "drafts",
    "num_draft_tokens": "draft tokens",
    "num_accepted_tokens": "accepted draft tokens",
}
"""Sums that are shown beside the metrics, with their labels."""
TOTAL_METRICS = ("acceptance_rate", "mean_acceptance_length", "mean_acceptance_length_macro")
BY_POSITION = ("acceptance_rate_per_pos", "conditional_acceptance_rate_per_pos")
ACCEPTED, DRAFTED, REACHED = "num_accepted_tokens_per_pos", "num_draft_tokens_per_pos", "num_reached_per_pos"
NO_POSITIONS = "the file counts nothing by position"
NO_DEPTH = "the file does not say how many tokens each draft had: --num-speculative-tokens K may settle it"


class Basis(Enum):
    """How a number was got."""

    measured = "measured"
    """The file counts it as we do."""
    derived = "derived"
    """It follows from other numbers of the file, by the formula that is told."""
    missing = "not derivable"


@dataclass(frozen=True)
class Given:
    """A sum, or a metric, as a file gives it."""

    values: tuple[float, ...]
    """[R] of each request; one value of all requests together."""
    how: str = ""
    """Formulas by which it follows from what the file has, with `; ` between them; empty where the file has it."""

    @property
    def total(self) -> float:
        return sum(self.values)


@dataclass(frozen=True)
class Told:
    """A number under the file's own name, and how it differs from ours."""

    name: str
    values: tuple[float, ...]
    """One, or that of each position."""
    meaning: str


@dataclass(frozen=True)
class Reading:
    """What a file, or a part of it, tells of one run."""

    sums: Mapping[str, Given] = field(default_factory=dict)
    """By our names."""
    metrics: Mapping[str, Given] = field(default_factory=dict)
    """Metrics that the file gives without their sums; one value each."""
    missing: Mapping[str, str] = field(default_factory=dict)
    """Why a sum or metric is not there; of positions under the name without its number."""
    prompts: tuple[str, ...] = ()
    """[R] the prompt of each request; empty where the file has totals alone."""
    depth: int | None = None
    """K: draft tokens that a draft has at most; None where neither the file nor the user says."""
    told: tuple[Told, ...] = ()
    notes: tuple[str, ...] = ()
    label: str = ""
    """Of a part of the file."""


@dataclass(frozen=True)
class Converted:
    """One number in our definition."""

    column: str
    """As in tables/cells.csv."""
    label: str
    style: str
    """See `harness.report.number_format`."""
    value: float
    """nan where it is missing."""
    low: float
    """Lower end of its interval; nan without one."""
    high: float
    basis: Basis
    how: str
    """Formula of a derived number, reason of a missing one."""


@dataclass(frozen=True)
class ConvertedRun:
    """A file, or a part of one, with all that a reader must know of it."""

    file: str
    format: str
    title: str
    """Of the format, in words."""
    source: str
    """Where its names and definitions were read."""
    seen: str
    """Output of the real program that its reader was run against; empty: of none."""
    definitions: Mapping[str, str]
    """Question in which tools differ -> this format's answer."""
    reading: Reading
    numbers: Sequence[Converted]

    @property
    def name(self) -> str:
        return f"{self.file} ({self.reading.label})" if self.reading.label else self.file

    @property
    def told(self) -> tuple[Told, ...]:
        """Numbers under the file's own definitions."""
        return (*self.reading.told, *over_drafts(self.reading))


def joined(*hows: str) -> str:
    """Several formulas, each once."""
    return "; ".join(dict.fromkeys(part for how in hows for part in how.split("; ") if part))


def sums_of(counts: Sequence[DraftCounts]) -> dict[str, Given]:
    """Our sums of some requests, or of one total."""
    names = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
    found = {name: Given(tuple(float(getattr(item, name)) for item in counts)) for name in names}
    for stem in (DRAFTED, ACCEPTED):
        rows = [getattr(item, stem) for item in counts]
        if all(row is not None for row in rows):
            for place in range(max(map(len, rows), default=0)):
                values = tuple(float(row[place]) if place < len(row) else 0.0 for row in rows)
                found[f"{stem}_{place + 1}"] = Given(values)
    return found


def sums_of_steps(requests: Sequence[Sequence[tuple[int, int]]], how: str = "") -> dict[str, Given]:
    """Our sums of requests whose steps are known, each as (draft tokens, accepted ones); how: they are known."""
    drafts = [[item for item in steps if item[0]] for steps in requests]

    def of_each(count: Callable[[tuple[int, int]], int]) -> Given:
        return Given(tuple(float(sum(map(count, steps))) for steps in drafts), how)

    found = {
        "num_drafts": of_each(lambda item: 1),
        "num_draft_tokens": of_each(lambda item: item[0]),
        "num_accepted_tokens": of_each(lambda item: item[1]),
    }
    for place in range(1, 1 + max((item[0] for steps in drafts for item in steps), default=0)):
        found[f"{DRAFTED}_{place}"] = of_each(partial(_has, drafted=place, accepted=0))
        found[f"{REACHED}_{place}"] = of_each(partial(_has, drafted=place, accepted=place - 1))
        found[f"{ACCEPTED}_{place}"] = of_each(partial(_has, drafted=place, accepted=place))
    return found


def _has(step: tuple[int, int], drafted: int, accepted: int) -> bool:
    """Whether a step has so many draft tokens and accepted ones at least."""
    return step[0] >= drafted and step[1] >= accepted


def check(reading: Reading) -> None:
    """Raise ValueError where the counts of a reading contradict each other."""
    totals = [reading.sums[name].total if name in reading.sums else None for name in list(COUNTS)[1:]]
    if None not in totals and all(float(value or 0).is_integer() for value in totals):
        num_drafts, num_tokens, num_accepted = (int(value or 0) for value in totals)
        DraftCounts(num_drafts, num_tokens, num_accepted)
    drafts, tokens, depth = totals[0], totals[1], reading.depth
    if drafts is not None and tokens is not None and depth is not None and tokens > depth * drafts + 0.5:
        raise ValueError(f"expected at most K = {depth} draft tokens a draft, found {tokens:g} of {drafts:g} drafts")
    accepted = [reading.sums[name].total for name in _of_positions(reading, ACCEPTED)]
    whole = reading.sums.get("num_accepted_tokens")
    if accepted and whole is not None and abs(sum(accepted) - whole.total) > 0.5 + 0.01 * whole.total:
        raise ValueError(
            f"expected accepted tokens by position that add up to {whole.total:g}, found {sum(accepted):g}"
        )


def completed(reading: Reading) -> Reading:
    """A reading with what follows from it: denominators by position, and the lengths of requests."""
    return _with_lengths(_with_positions(reading))


def converted(reading: Reading, num_resamples: int = 2000, confidence: float = 0.95) -> list[Converted]:
    """Every number of a reading in our definitions, in the order of tables.

    Raises:
        ValueError: its counts contradict each other.
    """
    check(reading)
    return list(_numbers(completed(reading), num_resamples, confidence))


def over_drafts(reading: Reading) -> tuple[Told, ...]:
    """Accepted at each position / all drafts, as many tools have it, where our rates cannot be had of it."""
    names, drafts = _of_positions(reading, ACCEPTED), reading.sums.get("num_drafts")
    if drafts is None or not drafts.total or _is_known(completed(reading), f"{BY_POSITION[0]}_1"):
        return ()
    meaning = "drafts that were too short to have the position included: our rates are these or higher"
    values = tuple(reading.sums[name].total / drafts.total for name in names)
    return (Told("accepted at position 1, 2, .. / drafts", values, meaning),) if values else ()


def num_positions(reading: Reading) -> int:
    """Positions for which a reading has a number; 0 where it has none."""
    names = [*reading.sums, *reading.metrics]
    stems = (*BY_POSITION, ACCEPTED)
    found = [int(name.rpartition("_")[2]) for name in names if name.rpartition("_")[0] in stems]
    return max(found, default=0)


def _of_positions(reading: Reading, stem: str) -> list[str]:
    names: list[str] = []
    while f"{stem}_{len(names) + 1}" in reading.sums:
        names.append(f"{stem}_{len(names) + 1}")
    return names


def _with_positions(reading: Reading) -> Reading:
    """Positions that no draft reached are 0; a position that every draft has is reached by what was accepted before."""
    sums, missing = dict(reading.sums), dict(reading.missing)
    drafts, tokens, depth = sums.get("num_drafts"), sums.get("num_draft_tokens"), reading.depth
    known = len(_of_positions(reading, ACCEPTED))
    is_full = depth is not None and drafts is not None and tokens is not None and _is_multiple(tokens, drafts, depth)
    if not known and not is_full:
        return reading
    if is_full and known and drafts is not None and depth is not None:
        how = f"every draft has {depth} tokens, as draft tokens = {depth} * drafts"
        how = joined(drafts.how, how)
        for place in range(known + 1, depth + 1):
            sums[f"{ACCEPTED}_{place}"] = Given((0.0,) * len(sums[f"{ACCEPTED}_1"].values), sums[f"{ACCEPTED}_1"].how)
        for place in range(1, depth + 1):
            sums.setdefault(f"{DRAFTED}_{place}", Given(drafts.values, how))
    for place in range(1, len(_of_positions(replace(reading, sums=sums), ACCEPTED)) + 1):
        drafted = sums.get(f"{DRAFTED}_{place}")
        before = drafts if place == 1 else sums.get(f"{ACCEPTED}_{place - 1}")
        if drafted is None or drafts is None or before is None or drafted.values != drafts.values:
            continue
        sums.setdefault(f"{REACHED}_{place}", Given(before.values, joined(drafted.how, before.how)))
    if drafts is not None and tokens is not None and depth is not None and not is_full and drafts.total:
        mean = tokens.total / drafts.total
        missing.setdefault(
            DRAFTED,
            f"drafts have {mean:.2f} tokens on average and {depth} at most, and the file does not count how many have "
            "a token at this position",
        )
    missing.setdefault(DRAFTED, NO_DEPTH)
    missing.setdefault(REACHED, "how many drafts have a token here and kept all before it is not in the file")
    return replace(reading, sums=sums, missing=missing)


def _is_multiple(tokens: Given, drafts: Given, depth: int) -> bool:
    pairs = zip(tokens.values, drafts.values, strict=True) if len(tokens.values) == len(drafts.values) else ()
    found = [abs(one - depth * other) < 1e-6 * max(1.0, one) for one, other in pairs]
    return bool(found) and all(found)


def _with_lengths(reading: Reading) -> Reading:
    drafts, accepted = reading.sums.get("num_drafts"), reading.sums.get("num_accepted_tokens")
    num = len(reading.prompts)
    sums = dict(reading.sums)
    if num and "num_requests" not in sums:
        sums["num_requests"] = Given((1.0,) * num)
    if num and drafts and accepted and len(drafts.values) == len(accepted.values) == num:
        pairs = list(zip(drafts.values, accepted.values, strict=True))
        how = joined(drafts.how, accepted.how)
        sums["num_requests_with_drafts"] = Given(tuple(float(one > 0) for one, _ in pairs), how)
        sums["request_acceptance_length"] = Given(tuple(1 + other / one if one else 0.0 for one, other in pairs), how)
    return replace(reading, sums=sums)


def _numbers(reading: Reading, num_resamples: int, confidence: float) -> Iterator[Converted]:
    from harness.analysis.definitions import metric

    nan = float("nan")
    for name, label in COUNTS.items():
        given = reading.sums.get(name)
        if given is None:
            reason = reading.missing.get(name, "the file does not count it")
            yield Converted(name, label, "count", nan, nan, nan, Basis.missing, reason)
        else:
            basis = Basis.derived if given.how else Basis.measured
            yield Converted(name, label, "count", given.total, nan, nan, basis, given.how)
    estimates = _estimates(reading, num_resamples, confidence)
    places = range(1, num_positions(reading) + 1)
    empty = [stem for stem in BY_POSITION if not any(_is_known(reading, f"{stem}_{place}") for place in places)]
    by_position = (f"{stem}_{place}" for stem in BY_POSITION if stem not in empty for place in places)
    for name in (*TOTAL_METRICS, *by_position):
        item = metric(name)
        inputs = _inputs(name)
        lacking = [each for each in inputs if each not in reading.sums]
        given = reading.metrics.get(name)
        if not lacking:
            value, low, high = estimates.estimate(name)
            how = joined(*(reading.sums[each].how for each in inputs))
            basis = Basis.derived if how else Basis.measured
            if value != value:  # noqa: PLR0124
                basis, how = Basis.missing, "0 / 0: there are no drafts"
        elif given is not None:
            value, low, high, how = given.values[0], nan, nan, given.how
            basis = Basis.derived if how else Basis.measured
        else:
            value = low = high = nan
            basis, how = Basis.missing, _reason(reading, name, lacking)
        yield Converted(name, item.label, item.style, value, low, high, basis, how)
    for stem in empty:
        label = metric(f"{stem}_1").label.replace("position 1", "position i")
        lacking = [each for each in _inputs(f"{stem}_1") if each not in reading.sums]
        reason = _reason(reading, f"{stem}_1", lacking) if places else reading.missing.get(ACCEPTED, NO_POSITIONS)
        yield Converted(f"{stem}_<i>", label, "percent", nan, nan, nan, Basis.missing, reason)


def _inputs(name: str) -> tuple[str, ...]:
    """Sums that a metric divides."""
    from harness.analysis.definitions import metric

    item = metric(name)
    return tuple(dict.fromkeys((*item.numerators, *filter(None, [item.denominator]))))


def _is_known(reading: Reading, name: str) -> bool:
    return name in reading.metrics or all(each in reading.sums for each in _inputs(name))


def _reason(reading: Reading, name: str, lacking: Sequence[str]) -> str:
    """Why a metric cannot be computed: the reason given for it, else that of the first sum that it lacks."""
    for each in (name, *lacking):
        stem, _, place = each.rpartition("_")
        for key in (each, *([stem] if place.isdigit() else [])):
            if key in reading.missing:
                return reading.missing[key]
    if lacking and lacking[0] in ("request_acceptance_length", "num_requests_with_drafts"):
        return "the file has no drafts and accepted tokens by request"
    return f"the file does not count {COUNTS.get(lacking[0], lacking[0])}" if lacking else ""


def _estimates(reading: Reading, num_resamples: int, confidence: float) -> Estimates:
    """The metrics of a reading by the code that makes those of cells."""
    import numpy as np

    from harness.analysis.estimates import Estimates
    from harness.analysis.sums import CellSums

    prompts, row_of = np.unique(reading.prompts or ("",), return_inverse=True)
    sums, totals = {}, {}
    for name, given in reading.sums.items():
        if len(given.values) == len(reading.prompts):
            sums[name] = np.bincount(row_of, weights=given.values, minlength=len(prompts)).astype(np.float64)
        else:
            sums[name] = np.full(len(prompts), np.nan)
            totals[name] = given.total
    cell = CellSums(tuple(map(str, prompts)), sums, {}, num_positions(reading), totals)
    return Estimates(cell, num_resamples, confidence)
