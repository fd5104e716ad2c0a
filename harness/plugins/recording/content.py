"""What the frames of a recording mean: their names, and arrays of numbers as text.

    first frame   `header`: what runs, and how
    frames        `requests` seen for the first time, `rounds` as columns, `terms` of the drafted positions
    last frame    `end`; a recording without it was not ended: its worker died, or still runs

A recording of a worker is a file NAME.recording. Rounds name their request by its number in the file.
"""

from __future__ import annotations

from base64 import b64decode, b64encode

import numpy as np
from numpy.typing import NDArray

MAGIC = b"rejection-lab recording 1\n"
SUFFIX = ".recording"
EXPECTED = "expected_accepted"
"""A column beside the terms: expected accepted tokens of a draft under each of the recorded methods."""


def to_text(values: NDArray[np.float64]) -> str:
    """float64 numbers as text that keeps every bit."""
    return b64encode(values.astype("<f8").tobytes()).decode()


def from_text(text: str) -> NDArray[np.float64]:
    """[n] the numbers that `to_text` was given; raises ValueError where the text is not of it."""
    return np.frombuffer(b64decode(text, validate=True), "<f8").astype(np.float64)
