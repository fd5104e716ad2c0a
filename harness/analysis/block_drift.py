"""Whether a cell's speed changed between the blocks of a run by more than its prompts explain: busy machine, or drift.

The cells of a run take turns, block by block of prompts, so that what changes slowly changes for all of them. Intervals
resample prompts and do not include changes of the machine; blocks reveal a change that hit two cells differently.

What is compared is the time of a forward, which prompts change far less than they change acceptance: in each block and
session the cell's seconds per forward over the baseline's, of the requests that both played there. How much this ratio
differs by prompts is taken from within the blocks, since drift between them would hide itself in what differs between
all prompts. Shapes: m prompts of a block.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from harness.analysis.estimates import Estimate
from harness.analysis.request_work import forwards, seconds
from harness.records.schema import CellRecord

FALSE_ALARMS = 0.003
"""Share of cells whose blocks would be told apart though nothing but their prompts differs."""
MATERIAL = 1.5
"""Of the width of the speedup's interval: a smaller change hides in what the interval says anyway."""
ALWAYS_MATERIAL = math.log(1.1)
"""A change by 10 % is told of however wide the interval is."""
WORTH_TELLING = math.log(1.5)
"""Where no change below 50 % could be told from the prompts, nothing was judged."""

ONE_BLOCK = "one block alone was measured in a session with the baseline; more prompts, or measurement.num_blocks, help"
ONE_PROMPT = "no block has two prompts"
TOO_FEW = "a change by half would not be told from its prompts, which are too few or differ too much"
NO_BLOCKS = "turns were left out, and the record is too old to tell its blocks"

Floats = NDArray[np.float64]
RequestKey = tuple[str, int, int]
"""Prompt, turn and sample."""


@dataclass(frozen=True)
class Drift:
    """What the blocks of a cell say of its speed."""

    share: float | None = None
    """By what share the speed over the baseline differs between blocks; None where it does by no more than explained,
    and where that cannot be said."""
    not_judged: str = ""
    """Why it cannot be said; empty where it can."""


@dataclass(frozen=True)
class BlockWork:
    """Forwards and seconds of the requests of a cell."""

    blocks: Mapping[tuple[int, str], Mapping[RequestKey, tuple[float, float]]]
    """By block and session."""

    @classmethod
    def of(cls, record: CellRecord) -> BlockWork | None:
        """None where the blocks of a record are not known."""
        places = _places(record)
        if places is None:
            return None
        times, found = seconds(record), dict[tuple[int, str], dict[RequestKey, tuple[float, float]]]()
        wall_s = {place: 0.0 for place in places}
        for block in record.blocks:
            wall_s[block.index, block.session] = wall_s.get((block.index, block.session), 0.0) + block.wall_s
        for place, request, number, time in zip(places, record.requests, forwards(record), times, strict=True):
            found.setdefault(place, {})[request.key] = float(number), float(time)
        return cls({place: _scaled(each, wall_s[place]) for place, each in found.items()})


def _places(record: CellRecord) -> list[tuple[int, str]] | None:
    """Block and session of each request.

    In a record of schema 2, blocks are equal shares of the conversations in its order, as
    `harness.runner.run_cells.interleave` runs them.
    """
    if record.blocks:
        return [(block.index, block.session) for block in record.blocks for _ in range(block.num_requests)]
    if record.num_skipped_turns:
        return None
    numbers: dict[tuple[str, int], int] = {}
    for item in record.requests:
        numbers.setdefault((item.prompt_id, item.sample), len(numbers))
    num_blocks = min(record.config.get("measurement", {}).get("num_blocks", 1), len(numbers))
    ends = [len(numbers) * (block + 1) // num_blocks for block in range(num_blocks)]
    found = [numbers[item.prompt_id, item.sample] for item in record.requests]
    return [(next(block for block, end in enumerate(ends) if number < end), "") for number in found]


def _scaled(
    requests: Mapping[RequestKey, tuple[float, float]], wall_s: float
) -> Mapping[RequestKey, tuple[float, float]]:
    """Seconds that add up to the wall time of the block, where that is known."""
    total = sum(time for _, time in requests.values())
    factor = wall_s / total if wall_s and total else 1.0
    return {key: (number, time * factor) for key, (number, time) in requests.items()}


def block_drift(own: BlockWork | None, baseline: BlockWork | None, speedup: Estimate) -> Drift:
    """Whether the blocks of a cell differ, which has a speedup over its baseline.

    Two blocks do where the logarithms of their ratios are further apart than prompts explain (Student's t with the
    variance within the blocks, corrected for the number of pairs by Bonferroni), and far enough to matter: by MATERIAL
    widths of the interval of the speedup, or by ALWAYS_MATERIAL.
    """
    if own is None or baseline is None:
        return Drift(not_judged=NO_BLOCKS)
    places = sorted(own.blocks.keys() & baseline.blocks.keys())
    ratios = [ratio for place in places if (ratio := _ratio(own.blocks[place], baseline.blocks[place])) is not None]
    if len(ratios) < 2:
        return Drift(not_judged=ONE_BLOCK)
    degrees = sum(len(item.residuals) for item in ratios) - len(ratios)
    if not degrees:
        return Drift(not_judged=ONE_PROMPT)
    pairs = list(combinations(ratios, 2))
    variance = sum(float((item.residuals**2).sum()) for item in ratios) / degrees
    explained = _quantile(degrees, len(pairs)) * math.sqrt(variance)
    material = min(MATERIAL * _log_width(speedup), ALWAYS_MATERIAL)
    apart, allowed = zip(*(_compared(*pair, explained, material) for pair in pairs), strict=True)
    differing = [each for each, most in zip(apart, allowed, strict=True) if each > most]
    if differing:
        return Drift(math.expm1(max(differing)))
    return Drift(not_judged=TOO_FEW if min(allowed) > WORTH_TELLING else "")


@dataclass(frozen=True)
class _BlockRatio:
    """The time of a forward of a cell over that of its baseline, in one block."""

    logarithm: float
    residuals: Floats
    """[m] what each prompt adds to the logarithm of the block's ratio, times m; they add up to 0."""


def _ratio(
    own: Mapping[RequestKey, tuple[float, float]], baseline: Mapping[RequestKey, tuple[float, float]]
) -> _BlockRatio | None:
    """On the requests that both have; None without any that took time."""
    keys = sorted(own.keys() & baseline.keys())
    prompts = {prompt_id: row for row, prompt_id in enumerate(dict.fromkeys(key[0] for key in keys))}
    # [m, 4]: forwards and seconds of the cell, and of the baseline
    table = np.zeros((len(prompts), 4))
    for key in keys:
        table[prompts[key[0]]] += (*own[key], *baseline[key])
    total = table.sum(axis=0)
    if not (total > 0).all():
        return None
    own_forwards, own_s, forwards_of_baseline, baseline_s = len(prompts) * (table / total).T
    logs = np.log(total)
    return _BlockRatio(
        float(logs[1] - logs[0] - logs[3] + logs[2]), own_s - own_forwards - baseline_s + forwards_of_baseline
    )


def _compared(first: _BlockRatio, second: _BlockRatio, explained: float, material: float) -> tuple[float, float]:
    """How far two blocks are apart, and how far they may be."""
    noise = explained * math.sqrt(sum(1 / len(item.residuals) for item in (first, second)))
    return abs(first.logarithm - second.logarithm), max(noise, material)


def _quantile(degrees: int, num_pairs: int) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(degrees, 1 - FALSE_ALARMS / 2 / num_pairs))


def _log_width(speedup: Estimate) -> float:
    """Of its interval, in logarithms; infinite where it has none."""
    return math.log(speedup.high / speedup.low) if 0 < speedup.low < speedup.high < math.inf else math.inf
