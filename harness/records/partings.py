"""Where greedy answers of two cells part and what decided there: partings.json in the folder of a run.

Written by `rejection-lab partings`, read by reports. Knows no model.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from harness.records.strict_json import Int64, at, parse_json, typed

PARTINGS = "partings.json"


@dataclass(frozen=True)
class AttributedParting:
    """One parting, with the target's logits in float32 behind the text that both answers share."""

    first_cell: str
    second_cell: str
    prompt_id: str
    turn: Int64
    sample: Int64
    place: Int64
    """Of the first token in which the answers differ, from 1."""
    tokens: tuple[Int64 | None, Int64 | None]
    """Of the first and the second cell; None where an answer has ended."""
    best_tokens: tuple[Int64, Int64]
    """The two with the largest logits."""
    gap: float
    """Difference of these logits."""
    behind: float
    """How far the lower of the two answers' tokens is below the best logit; 0 where one answer has ended."""
    rounding: float
    """How far rounding to the dtype of the cells moves the gap of the two best logits in this text, at most."""
    is_near_tie: bool
    """Whether rounding can have decided: `behind` is at most twice `rounding`."""


def write_partings(folder: Path, partings: Sequence[AttributedParting]) -> Path:
    """Write the attributed partings of a run into its folder; returns the file."""
    path = folder / PARTINGS
    path.write_text(json.dumps([asdict(item) for item in partings], indent=1) + "\n", encoding="utf-8")
    return path


def read_partings(folder: Path) -> tuple[AttributedParting, ...]:
    """The attributed partings of a run; empty where `rejection-lab partings` was not run on it.

    Raises:
        ValueError: the file is damaged; the message begins with its path.
    """
    path = folder / PARTINGS
    if not path.is_file():
        return ()
    found: tuple[AttributedParting, ...] = at(
        str(path), lambda: typed(tuple[AttributedParting, ...], parse_json(path.read_text(encoding="utf-8")))
    )
    return found
