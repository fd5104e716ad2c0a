"""Numbers as a table holds them, and as text: a value and its interval, or its parts, with the same decimals.

This module knows styles, not metrics.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isnan

from harness.analysis.estimates import Estimate

NOT_AVAILABLE = "n/a"
ROUNDING = 1e-9
"""Relative size of differences that come from the order of additions."""
FACTORS = {"percent": 100.0}
FIXED_DECIMALS = {"percent": 1, "length": 2, "overhead": 3, "seconds": 2, "count": 0}
"""Other styles (significant, milliseconds) take their decimals from the size of the value."""
PLAIN, SCIENTIFIC = "plain", "scientific"
"""Styles of settings, 0.7 or 64, and of rates over many powers of ten, 1.2e-05."""


@dataclass(frozen=True)
class Number:
    """A number of a table, with its interval where it has one."""

    value: float
    """nan: not available."""
    low: float | None = None
    """None: such a number has no interval; nan: its interval is not available."""
    high: float | None = None
    style: str = "significant"
    signed: bool = False
    decimals: int | None = None
    """None: that of the style."""
    sign: str = ""
    """Stands before it, such as × before a ratio."""
    note: str = ""
    """Follows it in brackets, such as same law."""
    mark: str = ""
    """Follows it without a space, such as †."""
    shown: str = ""
    """Printed instead of the value, such as < 1e-300."""
    values: tuple[float, ...] = ()
    """What it is the mean of, where these stand in the place of an interval."""

    @property
    def is_missing(self) -> bool:
        return isnan(self.value)

    @property
    def value_text(self) -> str:
        """The value alone."""
        if self.shown or self._is_exact_zero:
            return self.shown or "0"
        return format_value(self.value, self.style, signed=self.signed, decimals=self._decimals)

    @property
    def values_texts(self) -> list[str]:
        """Those that it is the mean of."""
        return [format_value(item, self.style, signed=self.signed, decimals=self._decimals) for item in self.values]

    @property
    def bounds(self) -> tuple[str, str] | None:
        """The ends of the interval as text, empty where they are not available; None without an interval."""
        if self.low is None or self.high is None or self.is_missing or self._is_exact_zero:
            return None
        if isnan(self.low) or isnan(self.high):
            return "", ""
        decimals = self._decimals
        low, high = (format_value(end, self.style, signed=self.signed, decimals=decimals) for end in self._ends)
        return low, high

    def __str__(self) -> str:
        interval = self.bounds
        parts = [self.sign, self.value_text]
        parts += [] if interval is None else [f"[{', '.join(interval) if interval[0] else NOT_AVAILABLE}]"]
        parts += [f"{{{', '.join(self.values_texts)}}}"] if self.values else []
        parts = [part for part in parts if part]
        return " ".join([*parts[:-1], parts[-1] + self.mark, *([f"({self.note})"] if self.note else [])])

    @property
    def _ends(self) -> list[float]:
        return [end for end in (self.low, self.high) if end is not None]

    @property
    def _is_exact_zero(self) -> bool:
        """A difference that is 0 in every resample."""
        return self.signed and self.value == self.low == self.high == 0

    @property
    def _decimals(self) -> int | None:
        """The same for the value and its interval."""
        if self.decimals is not None or self.style in (PLAIN, SCIENTIFIC):
            return self.decimals
        known = [abs(item) for item in (self.value, *self._ends, *self.values) if not isnan(item)]
        return _decimals(max(known, default=0.0) * FACTORS.get(self.style, 1.0), self.style)


def scaled(estimate: Estimate, factor: float) -> Estimate:
    """A value and its interval in another unit."""
    return Estimate(*(factor * item for item in estimate))


def count(value: float, note: str = "") -> Number:
    """A number of things."""
    return Number(value, style="count", note=note)


def format_value(value: float, style: str, *, signed: bool = False, decimals: int | None = None) -> str:
    """A number as text, n/a where it is nan; percent multiplies by 100 and prints no sign of its unit."""
    if isnan(value):
        return NOT_AVAILABLE
    if style in (PLAIN, SCIENTIFIC):
        return str(value) if isinstance(value, int) else f"{value:g}" if style == PLAIN else f"{value:.1e}"
    scaled = value * FACTORS.get(style, 1.0)
    digits = _decimals(scaled, style) if decimals is None else decimals
    rounded = round(scaled, digits) + 0.0  # no negative zero
    grouped = "," if abs(rounded) >= 10_000 else ""
    sign = "+" if signed and rounded > 0 else ""
    return f"{sign}{rounded:{grouped}.{digits}f}"


def format_estimate(estimate: Estimate, style: str, *, signed: bool = False) -> str:
    """A value and its interval: 2.21 [2.13, 2.29]; a difference that is 0 in every resample is printed as 0."""
    return str(Number(*estimate, style=style, signed=signed))


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
