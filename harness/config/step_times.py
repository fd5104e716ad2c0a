"""Seconds of a step by batch size and depth: their text form, and times between the measured sizes.

Knows neither torch nor Hydra.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise

FORM = (
    "REQUESTS:MS-MS-.. entries such as 1:5-6-7.5/8:9-12-15, milliseconds of a step whose rounds draft 0, 1, .. K "
    "tokens, in which REQUESTS grows"
)
MS_PER_S = 1e3


@dataclass(frozen=True)
class StepTimes:
    """Measured times of steps without prompts."""

    sizes: tuple[int, ...]
    """Requests that decode; growing."""
    seconds: tuple[tuple[float, ...], ...]
    """Of each size, by the depth 0, 1, .. K."""

    def at(self, num_requests: int, depth: int) -> float:
        """Seconds of a step: on the line between two measured sizes, outside of them those of the nearest size."""
        times = [row[depth] for row in self.seconds]
        for (low, high), (first, last) in zip(pairwise(self.sizes), pairwise(times), strict=True):
            if low <= num_requests <= high:
                return first + (last - first) * (num_requests - low) / (high - low)
        return times[0] if num_requests < self.sizes[0] else times[-1]

    @property
    def text(self) -> str:
        """The text form; milliseconds to four digits."""
        rows = ("-".join(f"{value * MS_PER_S:.4g}" for value in row) for row in self.seconds)
        return "/".join(f"{size}:{row}" for size, row in zip(self.sizes, rows, strict=True))


def read_step_times(text: str, num_drafts: int) -> StepTimes:
    """The times that a setting names.

    Args:
        text: see FORM.
        num_drafts: K.

    Raises:
        ValueError: it has another form, or other depths.
    """
    number = r"\d+(?:\.\d+)?(?:e[+-]?\d+)?"
    if not re.fullmatch(rf"\d+:{number}(-{number})*(/\d+:{number}(-{number})*)*", text.strip()):
        raise ValueError(f"expected {FORM}, found {text!r}")
    entries = [entry.split(":") for entry in text.strip().split("/")]
    sizes = tuple(int(size) for size, _ in entries)
    # a minus after an e belongs to the exponent
    rows = tuple(tuple(float(each) / MS_PER_S for each in re.split(r"(?<!e)-", row)) for _, row in entries)
    if sizes[0] < 1 or any(high <= low for low, high in pairwise(sizes)):
        raise ValueError(f"expected {FORM}, found {text!r}")
    if any(len(row) != num_drafts + 1 for row in rows):
        raise ValueError(
            f"expected {num_drafts + 1} times an entry, of 0 to drafting.num_speculative_tokens={num_drafts} drafts, "
            f"found {', '.join(str(len(row)) for row in rows)} in {text!r}"
        )
    if not all(value > 0 for row in rows for value in row):
        raise ValueError(f"expected times above 0, found {text!r}")
    return StepTimes(sizes, rows)
