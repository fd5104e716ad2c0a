"""Measurements of another tool, from two files: acceptance by position, and round times by batch size and depth.

Each file is CSV with a header, or JSON, an array of objects with the same names.

Acceptance, one line a position: `position` (1, 2, ..), and either `drafted` and `accepted`, counts of rounds that
drafted the position and of those that accepted it and all before it, or `rate`, accepted / drafted; neither `accepted`
nor `rate` can rise from a position to the next. Optional: `prompt`, which is what intervals draw again (with counts);
`depth`, where acceptance was measured apart for each depth; `temperature` and `workload`, each pair of which is tuned
for itself.
Round times, one line a measurement: `batch_size`, `depth` (0 is plain decoding) and `round_ms`, milliseconds from one
round of a request to its next while so many requests decode. Several lines of a pair are repeats, of which the mean
counts; intervals draw them again too. Optional: `temperature` and `workload`, where times are of one pair alone.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from harness.analysis.decode_steps import Floats
from harness.analysis.intervals import SEED, resample_weights
from harness.analysis.tuning.rates import DepthRates
from harness.config.sections import MeasurementConfig
from harness.records.strict_json import parse_json

KEYS = ("temperature", "workload")
"""Columns that tell settings apart."""
ACCEPTANCE = ("position", "drafted", "accepted", "rate", "prompt", "depth", *KEYS)
TIMES = ("batch_size", "depth", "round_ms", *KEYS)
Line = Mapping[str, Any]
Key = tuple[str, str]
MS_PER_S = 1e3


@dataclass(frozen=True)
class Given:
    """What two files say of one temperature and workload."""

    key: Key
    rates: DepthRates
    how: str


def read_measurements(acceptance: Path, times: Path) -> list[Given]:
    """One for each temperature and workload of the acceptance file, in their order.

    Raises:
        ValueError: a file is not there, has another form, or the two do not fit; the message names the file, the line
            and the column.
    """
    lines = _read(acceptance, ACCEPTANCE, ("position",))
    timed = _read(times, TIMES, ("batch_size", "depth", "round_ms"))
    by_key: dict[Key, list[tuple[int, Line]]] = {}
    for place, line in lines:
        by_key.setdefault(_key(line), []).append((place, line))
    return [_given(acceptance, times, key, of_key, timed) for key, of_key in by_key.items()]


def _given(
    acceptance: Path, times: Path, key: Key, lines: Sequence[tuple[int, Line]], timed: Sequence[tuple[int, Line]]
) -> Given:
    own = [
        (place, line)
        for place, line in timed
        if all(mine in ("", of) for mine, of in zip(_key(line), key, strict=True))
    ]
    if not own:
        raise ValueError(f"{times}: expected times at {_shown(key)}, as {acceptance} has, found none")
    by_pair: dict[tuple[int, int], list[float]] = {}
    for place, line in own:
        pair = _whole(times, place, line, "batch_size", 1), _whole(times, place, line, "depth", 0)
        by_pair.setdefault(pair, []).append(
            _number(times, place, line, "round_ms", math.inf, takes_zero=False) / MS_PER_S
        )
    sizes, depths = sorted({size for size, _ in by_pair}), sorted({depth for _, depth in by_pair})
    missing = [f"batch_size {size} depth {depth}" for size in sizes for depth in depths if (size, depth) not in by_pair]
    if missing:
        raise ValueError(
            f"{times}: expected each of the depths {', '.join(map(str, depths))} at each batch size, found no "
            f"{missing[0]}" + (f" (and {len(missing) - 1} more)" if len(missing) > 1 else "")
        )
    if len(depths) < 2:
        raise ValueError(f"{times}: expected two depths or more to choose from, found {depths[0]} alone")
    survival, num_units = _survival(acceptance, lines, depths)
    num_resamples = len(survival) - 1
    seconds = np.stack(
        [
            np.stack([_mean_of_repeats(by_pair[size, depth], num_resamples, size, depth) for size in sizes], axis=1)
            for depth in depths
        ],
        axis=1,
    )
    tokens = np.repeat(survival[:, :, None], len(sizes), axis=2)
    repeats = min(map(len, by_pair.values()))
    how = "tokens of a round: 1 + the rates of its positions, "
    how += f"intervals draw {num_units} prompts again" if num_units > 1 else "without intervals: no prompts are named"
    how += "; seconds of a step: as given"
    how += f", {repeats} repeats or more, drawn again too" if repeats > 1 else ", one measurement of some or all"
    has_interval = num_units > 1
    confidence = MeasurementConfig.confidence
    rates = DepthRates(tuple(depths), tuple(sizes), tokens, seconds, num_units if has_interval else 0, confidence)
    return Given(key, rates, how)


def _mean_of_repeats(values: Sequence[float], num_resamples: int, size: int, depth: int) -> Floats:
    """[R + 1] means of repeats drawn again, the mean of all behind them."""
    given = np.array(values)
    drawn = np.random.default_rng([SEED, size, depth]).integers(len(given), size=(num_resamples, len(given)))
    found: Floats = np.append(given[drawn].mean(axis=1), given.mean())
    return found


def _survival(path: Path, lines: Sequence[tuple[int, Line]], depths: Sequence[int]) -> tuple[Floats, int]:
    """[R + 1, D] tokens of a round: 1 + the survival of its positions; and how many prompts there are."""
    prompts = sorted({_text(line, "prompt") for _, line in lines})
    rows = {prompt: row for row, prompt in enumerate(prompts)}
    num_resamples = MeasurementConfig.num_resamples
    weights = np.vstack([resample_weights(len(rows), num_resamples), np.ones(len(rows))])
    counts: dict[tuple[str, int], Floats] = {}
    for place, line in lines:
        position, of_depth = _whole(path, place, line, "position", 1), _text(line, "depth")
        at = counts.setdefault((of_depth, position), np.zeros((2, len(rows))))
        row = rows[_text(line, "prompt")]
        if at[0, row]:
            raise ValueError(f"{path}: line {place}: position {position} stands there twice for one prompt and depth")
        at[:, row] = _counts(path, place, line)
    _check_falling(path, counts, prompts)
    found = []
    for depth in depths:
        own = str(depth) if any(of == str(depth) for of, _ in counts) else ""
        total = np.ones(len(weights))
        for position in range(1, depth + 1):
            if (own, position) not in counts:
                raise ValueError(
                    f"{path}: expected acceptance of position {position}, which depth {depth} needs, found none"
                    + (f" for depth {own}" if own else "")
                )
            drafted, accepted = counts[own, position] @ weights.T
            with np.errstate(divide="ignore", invalid="ignore"):
                rate = accepted / drafted
            # a resample in which nothing was drafted takes the observed rate
            total = total + np.where(np.isfinite(rate), rate, rate[-1])
        found.append(total)
    return np.stack(found, axis=1), len(rows)


def _check_falling(path: Path, counts: Mapping[tuple[str, int], Floats], prompts: Sequence[str]) -> None:
    """No position is accepted more often than the one before: it counts only where that one was accepted too."""
    for (of_depth, position), (drafted, accepted) in counts.items():
        before = counts.get((of_depth, position - 1))
        if before is None:
            continue
        (rows,) = np.nonzero((drafted > 0) & (before[0] > 0) & (accepted > before[1]))
        if len(rows):
            row = rows[0]
            prompt = f" of prompt {prompts[row]}" if prompts[row] else ""
            raise ValueError(
                f"{path}: position {position}{prompt}: expected at most what position {position - 1} has, "
                f"{before[1, row]:g}, as a draft counts as accepted only behind accepted ones, found "
                f"{accepted[row]:g}; rates given that those before were accepted have to be multiplied"
            )


def _counts(path: Path, place: int, line: Line) -> tuple[float, float]:
    has_rate, has_counts = _has(line, "rate"), _has(line, "drafted") and _has(line, "accepted")
    if has_rate is has_counts:
        raise ValueError(
            f"{path}: line {place}: expected drafted and accepted, or rate, found {'both' if has_rate else 'neither'}"
        )
    if has_rate:
        return 1.0, _number(path, place, line, "rate", 1, takes_zero=True)
    drafted = _number(path, place, line, "drafted", math.inf, takes_zero=False)
    return drafted, _number(path, place, line, "accepted", drafted, takes_zero=True)


def _has(line: Line, name: str) -> bool:
    return line.get(name) not in (None, "")


def _key(line: Line) -> Key:
    return _text(line, "temperature"), _text(line, "workload")


def _text(line: Line, name: str) -> str:
    """A value as text, empty where there is none."""
    return str(line[name]) if _has(line, name) else ""


def _shown(key: Key) -> str:
    named = [f"{name} {value}" for name, value in zip(KEYS, key, strict=True) if value]
    return ", ".join(named) or "any temperature and workload"


def _read(path: Path, known: Sequence[str], needed: Sequence[str]) -> list[tuple[int, Line]]:
    """The lines of a file, with their number in it."""
    if not path.is_file():
        raise ValueError(f"{path}: expected a CSV or JSON file, found none")
    text = path.read_text(encoding="utf-8-sig")
    if text.lstrip().startswith("["):
        parsed = parse_json(text.encode())
        if not all(isinstance(line, dict) for line in parsed):
            raise ValueError(f"{path}: expected an array of objects with {', '.join(needed)}, found other entries")
        lines = [(place, line) for place, line in enumerate(parsed, start=1)]
    else:
        reader = csv.DictReader(io.StringIO(text))
        lines = [(reader.line_num, line) for line in reader]
    if not lines:
        raise ValueError(f"{path}: expected lines with {', '.join(needed)}, found none")
    for place, line in lines:
        unknown = [str(name) for name in line if name not in known]
        if unknown:
            raise ValueError(
                f"{path}: line {place}: expected columns among {', '.join(known)}, found {', '.join(unknown)}; leave "
                "out what is not of these"
            )
        absent = [name for name in needed if not _has(line, name)]
        if absent:
            raise ValueError(f"{path}: line {place}: expected a value of {', '.join(absent)}, found none")
    return lines


def _number(path: Path, place: int, line: Line, name: str, most: float, *, takes_zero: bool) -> float:
    """A number of 0 or more, or above 0, and at most another one."""
    try:
        value = float(line[name])
    except (TypeError, ValueError):
        value = math.nan
    # nan fails both
    if not (0 <= value <= most and value < math.inf) or (value == 0 and not takes_zero):
        bounds = f"{'0 or more' if takes_zero else 'above 0'}{'' if math.isinf(most) else f', at most {most:g}'}"
        raise ValueError(f"{path}: line {place}: {name}: expected a number {bounds}, found {line[name]!r}")
    return value


def _whole(path: Path, place: int, line: Line, name: str, least: int) -> int:
    value = line[name]
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not number.is_integer() or number < least:
        raise ValueError(f"{path}: line {place}: {name}: expected a whole number, {least} or more, found {value!r}")
    return int(number)
