"""What a tracker is, and what it gets of a run. Knows no tracker and imports no library of one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.config.imported import ImportPath
from harness.config.tracker import TRACKING, TrackerKind


@dataclass(frozen=True)
class SentCell:
    """What is sent of a cell."""

    run: str
    """Name of the run."""
    cell_id: str
    has_failed: bool
    labels: str
    settings: Mapping[str, Any]
    """By key, such as decoding.temperature."""
    numbers: Mapping[str, float]
    """By column of COLUMNS.md; those that are known."""

    @property
    def name(self) -> str:
        """Of the run and the cell, so that results that are sent again take the place of those before."""
        return f"{self.run}-{self.cell_id}"


@dataclass(frozen=True)
class Tracker:
    """An experiment tracker.

    Of the user's own too: `output.tracking=PACKAGE.MODULE:NAME` names such an object.
    """

    send: Callable[[Sequence[SentCell], Path], str]
    """(the cells of a run, its folder, which may take files) -> where they are now, in words. Raises where they were
    not taken; the run's own files are there all the same."""
    check: Callable[[], None] = lambda: None
    """Raises where results could not be sent; called before anything is run."""
    package: str = ""
    """What must be installed for it beside this project."""


def tracker_of(kind: TrackerKind | ImportPath) -> Tracker:
    """The tracker of a name; ValueError where one of the user's own cannot be imported, or is none."""
    found: Tracker = kind.named if isinstance(kind, TrackerKind) else kind.load(TRACKING, Tracker)
    return found
