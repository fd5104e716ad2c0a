"""The plan of a run: its cells, baselines included and each cell once, and what was left out with the reason.

This module does not know how settings are composed nor how cells are run.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from harness.config import CellConfig, DrafterConfig
from harness.determinants import canonical, determinants


@dataclass(frozen=True)
class Plan:
    """Everything a run needs to know before a model is loaded."""

    name: str
    title: str
    """One line that says what the run shows."""
    cells: tuple[CellConfig, ...]
    """Cells of one target lie together, its baselines first; no two determine the same result."""
    skipped: tuple[tuple[Mapping[str, Any], str], ...]
    """Swept values of each combination that was left out, and why it has no meaning."""
    folder: Path
    """Where the run leaves its results."""
    command: str
    """The command line that asked for the run."""


def with_baselines(cells: Sequence[CellConfig]) -> tuple[CellConfig, ...]:
    """The cells in canonical form, each once, with the baselines they need in front of the cells of their target.

    Args:
        cells: cells in the order of the sweep, those of one target together.

    Returns:
        For each target: the autoregressive baselines of every decoding, workload, backend and seed (unless
        `measurement.baseline` is false), then its cells.
    """
    ordered: list[CellConfig] = []
    for _, group in groupby(cells, key=lambda cell: cell.target):
        members = list(group)
        ordered += [_baseline(cell) for cell in members if cell.measurement.baseline or cell.is_baseline]
        ordered += members
    return tuple(_each_once(canonical(cell) for cell in ordered))


def _baseline(cell: CellConfig) -> CellConfig:
    return replace(cell, drafter=DrafterConfig())


def _each_once(cells: Iterable[CellConfig]) -> list[CellConfig]:
    by_result: dict[str, CellConfig] = {}
    for cell in cells:
        by_result.setdefault(json.dumps(determinants(cell), sort_keys=True), cell)
    return list(by_result.values())
