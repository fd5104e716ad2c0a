"""The root of the composed settings: those of a cell, and those that belong to the whole run.

Knows neither torch nor Hydra.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from harness.config.cell import UNIONS, CellConfig
from harness.config.imported import OrImported
from harness.config.launcher import LAUNCHER, LauncherConfig, launcher_of
from harness.config.tracker import TrackerKind
from kernels.methods import TreeMethod, VerificationMethod

RUN_UNIONS = {**UNIONS, LAUNCHER.section: LAUNCHER}
"""The same of a run."""


class InvalidCells(Enum):
    """What a sweep does with invalid combinations."""

    error = "error"
    skip = "skip"


NAMED_ALONE = 2
"""Combinations skipped for one reason that have a line each; more share one."""
REASONS_NAMED = 5
"""As many reasons have lines of their own; the others share one."""


def skipped_lines(skipped: Iterable[tuple[Mapping[str, Any], str]]) -> list[str]:
    """What was left out, and why.

    Args:
        skipped: for each combination the values that the sweep gave it, and the reason.
    """
    by_reason: dict[str, list[str]] = {}
    for values, reason in skipped:
        named = (f"{key}={'null' if value is None else value}" for key, value in values.items())
        by_reason.setdefault(reason, []).append(" ".join(named))
    lines = []
    for reason, names in [*by_reason.items()][:REASONS_NAMED]:
        few = len(names) <= NAMED_ALONE
        shown = names if few else [f"{len(names)} combinations, the first of them {names[0]}"]
        lines += [f"skipped {name}: {reason}" for name in shown]
    left = [len(names) for names in by_reason.values()][REASONS_NAMED:]
    if left:
        lines.append(f"skipped {sum(left)} more combinations (other reasons: {len(left)})")
    return lines


def invalid_text(skipped: Sequence[tuple[Mapping[str, Any], str]], num_points: int) -> str:
    """Why a sweep is refused: every combination that is invalid, below its reason.

    Args:
        skipped: as of `skipped_lines`.
        num_points: combinations of the sweep.
    """
    if num_points == 1:
        return skipped[0][1]
    by_reason: dict[str, list[str]] = {}
    for point, reason in skipped:
        by_reason.setdefault(reason, []).append(" ".join(f"{key}={value}" for key, value in point.items()))
    lines = [f"{len(skipped)} of {num_points} combinations are invalid (invalid_cells=skip runs the others):"]
    for reason, points in by_reason.items():
        lines += [f"  {reason}:", *(f"    {point}" for point in points)]
    return "\n".join(lines)


@dataclass
class OutputConfig:
    """Where a run leaves its results."""

    folder: str | None = None
    """Folder of the run; null is results/runs/ with the run's name."""
    tracking: OrImported[TrackerKind] | None = None
    """Experiment tracker that the results are sent to when the run is done; or PACKAGE.MODULE:NAME, one of your own
    (harness.report.trackers.tracker)."""


@dataclass
class RunConfig(CellConfig):
    """The root of the composed settings."""

    name: str | None = None
    """Name of the run; null is the experiment's name, or without an experiment the time and a word: a new folder, in
    which the same command goes on."""
    title: str | None = None
    """One line that names the question of the run; printed above its tables."""
    shows: str | None = None
    """What the results show; printed below the title."""
    does_not_show: str | None = None
    """What they do not show, although a reader may expect it; printed below that."""
    reference: OrImported[VerificationMethod | TreeMethod] | None = None
    """The method that the others are compared with where methods stand side by side; null takes the first."""
    invalid_cells: InvalidCells = InvalidCells.error
    """Invalid combinations of a sweep: stop before anything is loaded, or skip and list them."""
    output: OutputConfig = field(default_factory=OutputConfig)
    launcher: LauncherConfig = field(default_factory=lambda: launcher_of(LAUNCHER.default))
    sweep: dict[str, Any] = field(default_factory=dict)
    """An experiment's sweep: setting or group, and the list of its values; the command line replaces it by key."""
    without_gpu: dict[str, Any] = field(default_factory=dict)
    """An experiment's smaller values where there is no GPU, by setting (a list for one that it sweeps); the command
    line replaces them by key."""


ONLY_IN_FILES = ("sweep", "without_gpu")
"""What the file of an experiment may say and a command line may not."""
