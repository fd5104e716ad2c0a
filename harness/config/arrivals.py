"""Arrivals whose rate moves: the form of the setting, and the rate in front of each conversation.

Knows neither conversations nor clocks.
"""

from __future__ import annotations

import math
import re

FORM = (
    "RATE:CONVERSATIONS pairs such as 20:40/200:160, conversations that arrive at so many per second, two pairs or more"
)

Rates = tuple[tuple[float, int], ...]
"""(conversations per second, how many arrive at this rate), in their order."""


def read_rates(text: str) -> Rates:
    """The pairs that a setting names.

    Raises:
        ValueError: it has another form, or a rate or a number is 0.
    """
    number = r"\d+(?:\.\d+)?(?:e[+-]?\d+)?"
    if not re.fullmatch(rf"{number}:\d+(/{number}:\d+)+", text.strip()):
        raise ValueError(f"expected {FORM}, found {text!r}")
    pairs = [pair.split(":") for pair in text.strip().split("/")]
    rates = tuple((float(rate), int(count)) for rate, count in pairs)
    if not all(0 < rate < math.inf and count > 0 for rate, count in rates):
        raise ValueError(f"expected rates and numbers above 0, found {text!r}")
    return rates


def rates_name(rates: Rates) -> str:
    """The text form."""
    return "/".join(f"{rate:g}:{count}" for rate, count in rates)


def rate_at(rates: Rates, place: int) -> float:
    """Conversations per second in front of the conversation at a place, counted from 0; the last pair is followed by
    the first."""
    left = place % sum(count for _, count in rates)
    for rate, count in rates:
        if left < count:
            return rate
        left -= count
    raise AssertionError("the place lies within the sum")
