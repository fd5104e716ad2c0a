"""Turns numbers into text for tables, a value and its interval with the same decimals, and reads such text again.

This module knows styles, not metrics.
"""

from __future__ import annotations

import re
from math import isnan
from typing import NamedTuple

from harness.metrics.estimates import Estimate

NOT_AVAILABLE = "n/a"
ROUNDING = 1e-9
"""Relative size of differences that come from the order of additions."""
FACTORS = {"percent": 100.0}
FIXED_DECIMALS = {"percent": 1, "length": 2, "overhead": 3, "seconds": 2, "count": 0}
"""Other styles (significant, milliseconds) take their decimals from the size of the value."""


def format_value(value: float, style: str, *, signed: bool = False, decimals: int | None = None) -> str:
    """A number as text, n/a where it is nan; percent multiplies by 100 and prints no sign of its unit."""
    if isnan(value):
        return NOT_AVAILABLE
    scaled = value * FACTORS.get(style, 1.0)
    digits = _decimals(scaled, style) if decimals is None else decimals
    rounded = round(scaled, digits) + 0.0  # no negative zero
    grouped = "," if abs(rounded) >= 10_000 else ""
    sign = "+" if signed and rounded > 0 else ""
    return f"{sign}{rounded:{grouped}.{digits}f}"


def format_interval(low: float, high: float, style: str, *, signed: bool = False, decimals: int | None = None) -> str:
    """An interval as text: [2.13, 2.29], [n/a] where there is none."""
    if isnan(low) or isnan(high):
        return f"[{NOT_AVAILABLE}]"
    if decimals is None:
        decimals = _decimals(max(abs(low), abs(high)) * FACTORS.get(style, 1.0), style)
    texts = (format_value(bound, style, signed=signed, decimals=decimals) for bound in (low, high))
    return f"[{', '.join(texts)}]"


def format_estimate(estimate: Estimate, style: str, *, signed: bool = False) -> str:
    """A value and its interval: 2.21 [2.13, 2.29]; a difference that is 0 in every resample is printed as 0."""
    value, low, high = estimate
    if isnan(value):
        return NOT_AVAILABLE
    if signed and value == low == high == 0:
        return "0"
    largest = max(abs(item) for item in estimate if not isnan(item))
    decimals = _decimals(largest * FACTORS.get(style, 1.0), style)
    text = format_value(value, style, signed=signed, decimals=decimals)
    return f"{text} {format_interval(low, high, style, signed=signed, decimals=decimals)}"


def without_width_zero(estimate: Estimate) -> Estimate:
    """The same without its interval where all resamples gave one value; a value of 0 in all of them is kept.

    For times: requests that went through the same steps share one time, so their prompts show no variation, however
    large it is.
    """
    value, low, high = estimate
    if high - low > ROUNDING * max(abs(low), abs(high)) or value == low == high == 0:
        return estimate
    return Estimate(value, float("nan"), float("nan"))


def _decimals(scaled: float, style: str) -> int:
    if style in FIXED_DECIMALS:
        return FIXED_DECIMALS[style]
    size = round(abs(scaled), 6)
    return 0 if size >= 100 else 1 if size >= 10 else 2


class Printed(NamedTuple):
    """A number as a table prints it, in its parts; empty where there is none."""

    sign: str
    """× before a ratio."""
    value: str
    low: str
    high: str
    remark: str
    """What stands behind it in brackets, such as same law."""

    @property
    def number(self) -> float:
        return float(self.value.replace(",", ""))


_NUMBER = r"[+-]?\d[\d,]*(?:\.\d+)?"
_PRINTED = re.compile(
    rf"(?P<sign>× )?(?P<value>{_NUMBER})"
    rf"(?: \[(?:(?P<low>{_NUMBER}), (?P<high>{_NUMBER})|{NOT_AVAILABLE})\])?"
    r"(?: \((?P<remark>[^()]*)\))?"
)


def read_printed(text: str) -> Printed | None:
    """The parts of a printed number; None if the text is not one."""
    matched = _PRINTED.fullmatch(text)
    return Printed(**{name: (part or "").strip() for name, part in matched.groupdict().items()}) if matched else None
