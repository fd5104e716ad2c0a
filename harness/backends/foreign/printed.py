"""How many drafts a log line speaks of, from figures that it prints rounded: the numbers that would print the same.

vLLM's and llama.cpp's lines print accepted and drafted tokens in full, the acceptance length and rates by position
rounded, and the number of drafts not at all.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness.analysis.converted import ACCEPTED, Given, joined

SLACK = 1e-9
FULL = "drafts = draft tokens / K, which fits every printed figure"
ONLY = "drafts: the only number that fits every printed figure"
SEVERAL = "several numbers of drafts fit the figures that the log prints rounded"
RATES = "accepted at a position = printed rate * drafts"


@dataclass(frozen=True)
class Line:
    """What a line prints."""

    accepted: int
    drafted: int
    length: str | None = None
    """Acceptance length, as printed; None where the line has none."""
    rates: tuple[str, ...] = ()
    """Accepted at position 1, 2, .. / drafts, as printed."""


@dataclass(frozen=True)
class Drafts:
    """The number of drafts of a line."""

    low: int
    high: int
    how: str
    """How it is known; empty where it is not."""

    @property
    def is_known(self) -> bool:
        return bool(self.how)


def depth_of(lines: Iterable[Line], known: int | None) -> int | None:
    """Tokens of a draft at most: as many as the lines print rates; where they print none, what is known already.

    Raises:
        ValueError: lines of several K.
    """
    widths = {len(line.rates) for line in lines if line.rates}
    if len(widths) > 1:
        raise ValueError(f"expected lines of one K, found rates of {sorted(widths)} positions")
    return widths.pop() if widths else known


def drafts_of(line: Line, depth: int | None) -> Drafts:
    """The drafts of a line.

    Args:
        line: what it prints.
        depth: tokens of a draft at most; None where that is not known.

    Raises:
        ValueError: no number fits what is printed.
    """
    fitting = [number for number in _range(line, depth) if _fits(line, number)]
    if not fitting:
        raise ValueError(
            f"expected figures of one number of drafts, found {line.accepted} accepted of {line.drafted}, length "
            f"{line.length}, rates {', '.join(line.rates)}, which none gives"
        )
    if len(fitting) == 1:
        return Drafts(fitting[0], fitting[0], ONLY)
    if depth is not None and fitting[0] * depth == line.drafted:
        return Drafts(fitting[0], fitting[0], FULL)
    return Drafts(fitting[0], fitting[-1], "")


def accepted_by_position(line: Line, drafts: int) -> list[float]:
    """Accepted tokens of each position; whole numbers up to 1000 drafts, where three decimals tell them apart."""
    exact = [float(rate) * drafts for rate in line.rates]
    whole = [float(round(value)) for value in exact]
    return whole if sum(whole) == line.accepted else exact


def lengths_of(lines: Sequence[Line], found: Sequence[Drafts]) -> Given:
    """The acceptance length of all lines where the drafts of some are not known exactly."""
    accepted = sum(line.accepted for line in lines)
    low, high = sum(item.low for item in found), sum(item.high for item in found)
    middle = 2 * accepted / (low + high)
    how = (
        f"1 + accepted / drafts; the printed figures allow {low} to {high} drafts, so that it lies between "
        f"{1 + accepted / high:.3f} and {1 + accepted / low:.3f}"
    )
    return Given((1 + middle,), how)


def is_whole(value: float) -> bool:
    """Whether a quotient of whole numbers times its denominator is one again, but for the arithmetic of doubles."""
    return abs(value - round(value)) <= SLACK * max(1.0, abs(value))


def sums_of_rates(rates: Sequence[float], drafts: float) -> dict[str, Given]:
    """Accepted tokens of each position from rates over all drafts; of rounded rates what they give, not whole."""
    found = {}
    for place, rate in enumerate(rates, start=1):
        exact, how = rate * drafts, "rate in the file * drafts"
        given = Given((float(round(exact)),), how) if is_whole(exact) else Given((exact,), f"{how}, of a rounded rate")
        found[f"{ACCEPTED}_{place}"] = given
    return found


def position_sums(lines: Sequence[Line], found: Sequence[Drafts]) -> dict[str, Given]:
    """Accepted tokens by position of each line, all of whose drafts are known; empty where a line has no rates."""
    if not all(line.rates or not line.accepted for line in lines):
        return {}
    rows = [accepted_by_position(line, item.low) for line, item in zip(lines, found, strict=True)]
    width = max(map(len, rows), default=0)
    hows = joined(*(item.how for item in found), RATES)
    return {
        f"{ACCEPTED}_{place + 1}": Given(tuple(row[place] if place < len(row) else 0.0 for row in rows), hows)
        for place in range(width)
    }


def _half_unit(text: str) -> float:
    return 0.5 * 10.0 ** -len(text.partition(".")[2]) + SLACK


def _range(line: Line, depth: int | None) -> Iterable[int]:
    low, high = 1, max(line.drafted, 1)
    if depth is not None:
        low = max(low, -(-line.drafted // depth))
    if line.length is not None and line.accepted:
        mean, unit = float(line.length) - 1, _half_unit(line.length)
        low = max(low, math.floor(line.accepted / (mean + unit)))
        if mean > unit:
            high = min(high, math.ceil(line.accepted / (mean - unit)))
    return range(low, high + 1)


def _fits(line: Line, drafts: int) -> bool:
    if line.length is not None and abs(1 + line.accepted / drafts - float(line.length)) > _half_unit(line.length):
        return False
    if not line.rates:
        return True
    least = most = 0
    for rate in line.rates:
        unit = _half_unit(rate)
        lowest = max(0, math.ceil((float(rate) - unit) * drafts))
        highest = min(drafts, math.floor((float(rate) + unit) * drafts))
        if lowest > highest:
            return False
        least, most = least + lowest, most + highest
    return least <= line.accepted <= most
