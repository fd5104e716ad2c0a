"""The plan of a run: its cells, baselines included and each cell once, what was left out and why, and its folder.

This module does not know how settings are composed nor how cells are run.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

from harness.config.cell import CellConfig
from harness.config.drafter import DrafterKind, drafter_of
from harness.config.guarantee import RANDOM_WEIGHTS
from harness.config.identity import determinants, key_without, plain_values
from harness.config.imported import ImportPath
from harness.config.launcher import LAUNCHER, LauncherConfig, launcher_of
from harness.config.models import Weights
from harness.config.schema import SettingsError
from harness.config.tracker import TrackerKind
from harness.config.usage import normal_form
from harness.records.files import identity


@dataclass(frozen=True)
class Resume:
    """What a run does with what earlier sessions of the same name left."""

    is_fresh: bool = False
    """Throw away what they kept of the plan's cells, finished or not."""
    accepts_drift: bool = False
    """Go on with it even where it was measured with another commit, library, GPU, number of threads or server."""
    retries_failed: bool = False
    """Run again cells that have failed, blocks in which requests have, and finished cells with such blocks."""
    own_sessions: str = ""
    """How the names of this run's sessions begin, if it has several: what they kept is never thrown away."""


@dataclass(frozen=True)
class Workers:
    """The processes that run the cells."""

    devices: tuple[str | None, ...] = (None,)
    """One for each on this host: what its CUDA_VISIBLE_DEVICES becomes; None leaves that as it is."""
    stall_limit_s: float = 3600
    """A process from which nothing came for so long is ended; 0 waits for ever."""


@dataclass(frozen=True)
class RunPlan:
    """Everything a run needs to know before a model is loaded."""

    name: str
    title: str
    """One line that names the question of the run."""
    cells: tuple[CellConfig, ...]
    """Cells of one target lie together, its baselines first; no two determine the same result."""
    skipped: tuple[tuple[Mapping[str, Any], str], ...]
    """Swept values of each combination that was left out, and why it is invalid."""
    folder: Path
    """Where the run leaves its results."""
    command: str
    """The command line that asked for the run."""
    shows: str = ""
    """What its results show."""
    does_not_show: str = ""
    """What they do not show."""
    reference: str | None = None
    """Verification method that the others are compared with; None is the first."""
    warnings: tuple[str, ...] = ()
    """What makes this run another than the one asked for: a smaller size, a model that stands in."""
    resume: Resume = Resume()
    workers: Workers = Workers()
    launcher: LauncherConfig = field(default_factory=lambda: launcher_of(LAUNCHER.default))
    tracking: TrackerKind | ImportPath | None = None
    """Where results are sent beside the report."""
    is_unnamed: bool = False
    """Neither a name, an experiment nor a folder was given; `harness.runner.plan.unnamed` chooses them."""

    @cached_property
    def key(self) -> str:
        """Equal for plans of the same cells."""
        return identity({"cells": [plain_values(cell) for cell in self.cells]})

    @property
    def told_at_start(self) -> tuple[str, ...]:
        """What a user should know before the cells run: the warnings, and adapters that never met their engine."""
        servers = {cell.server.engine: cell.server for cell in self.cells if cell.is_served}
        return *self.warnings, *(item.what_was_run for item in servers.values() if not item.traits.was_run)

    @property
    def command_to_go_on(self) -> str:
        """The command for the next session of the run: on the same devices, without what holds for one session."""
        devices = ",".join(name for name in self.workers.devices if name is not None)
        return f"{self.command} --devices {devices}" if devices else self.command


def with_baselines(cells: Sequence[CellConfig]) -> tuple[CellConfig, ...]:
    """The cells in normal form, each once, with the baselines they need before the cells of their target.

    Args:
        cells: cells in the order of the sweep, those of one target together.

    Returns:
        For each target: the autoregressive baselines of every decoding, workload, backend and seed (unless
        `measurement.baseline` is false), then its cells.
    """
    ordered: list[CellConfig] = []
    for _, group in groupby(cells, key=lambda cell: cell.target):
        # a product of settings that few cells use has the same cell many times
        members = _each_once(normal_form(cell) for cell in group)
        ordered += [normal_form(_baseline(cell)) for cell in members if cell.measurement.baseline or cell.is_baseline]
        ordered += members
    return tuple(_each_once(ordered))


@contextmanager
def made_folder(folder: Path) -> Iterator[None]:
    """Make the folder of a run, before anything is loaded, and see that files can be written there.

    What was made is removed again if the run ends without a file in it.

    Raises:
        SettingsError: it cannot be made or written to.
    """
    made: list[Path] = []
    try:
        made += [path for path in (folder, *folder.parents) if not path.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        _remove_empty(made)
        reason = error.strerror or type(error).__name__
        raise SettingsError(
            f"output.folder: expected a folder that can be made and written to, found {str(folder)!r} ({reason})"
        ) from error
    try:
        yield
    finally:
        _remove_empty(made)


def _remove_empty(made: Sequence[Path]) -> None:
    """Remove those folders, and those inside the first, that are empty; inner ones first."""
    inner: list[Path] = []
    # a name that is too long was never made
    with suppress(OSError):
        inner = [path for folder in made[:1] for path in folder.glob("*") if path.is_dir()]
    for path in (*inner, *made):
        # not empty, or never made
        with suppress(OSError):
            path.rmdir()


def cell_table(cells: Sequence[CellConfig], states: Sequence[str] = ()) -> str:
    """One aligned line per cell: `cell_rows`, and what there is of it, if anything is told of that."""
    lines = [list(row) for row in cell_rows(cells)]
    lines = [[*line, state] for line, state in zip(lines, ("there is", *states), strict=True)] if states else lines
    widths = [max(len(line[index]) for line in lines) for index in range(len(lines[0]))]
    padded = (zip(line, widths, strict=True) for line in lines)
    return "\n".join("  ".join(text.ljust(width) for text, width in line).rstrip() for line in padded)


def cell_rows(cells: Sequence[CellConfig]) -> list[tuple[str, ...]]:
    """A header, and of each cell who drafts, how deep, how it is decoded and verified, and what else differs."""
    rows = [_shown_settings(cell) for cell in cells]
    keys = dict.fromkeys(key for row in rows for key in row)
    rows = [dict.fromkeys(keys, "-") | row for row in rows]
    varying = [key for key in keys if key not in _LISTED and len({str(row[key]) for row in rows} - {"-"}) > 1]
    columns = [key for key in [*_LISTED, *varying] if key not in _FOLLOWS]
    header = ("", *(_LISTED.get(key, key) for key in columns))
    return [header, *((str(number), *(str(row[key]) for key in columns)) for number, row in enumerate(rows, start=1))]


_LISTED = {
    "target.name": "target",
    "drafter.kind": "drafter",
    "drafting.num_speculative_tokens": "K",
    "drafting.sampling": "drafts",
    "decoding.temperature": "T",
    "verification.method": "verification",
}
"""Settings that are listed for every cell, and their headings."""
_FOLLOWS = (
    "target.path",
    "target.preferred",
    "target.shape",
    "target.weights",
    "drafter.preferred",
    "drafter.weights",
)
"""Settings that show in a listed one."""


_AS_WRITTEN = {"None": "null", "True": "true", "False": "false"}
"""What is written in a setting, by its value in Python."""


def _shown_settings(cell: CellConfig) -> dict[str, Any]:
    """Every setting by key; those that the baseline or this engine does not have as a dash."""
    shown: dict[str, Any] = {}
    for section, values in plain_values(cell).items():
        entries = values.items() if isinstance(values, dict) else [("", values)]
        shown |= {f"{section}.{name}".rstrip("."): _AS_WRITTEN.get(repr(value), value) for name, value in entries}
    shown["drafting.sampling"] = cell.draft_sampling.value
    for key, weights in (("target.name", cell.target.weights), ("drafter.kind", cell.drafter.weights)):
        shown[key] += f" ({RANDOM_WEIGHTS})" if weights is Weights.random else ""
    lacking = [*(("drafting.", "verification.") if cell.is_baseline else ()), *(() if cell.is_served else ("server.",))]
    shown |= dict.fromkeys([key for key in shown if key.startswith(tuple(lacking))], "-")
    return shown


def _baseline(cell: CellConfig) -> CellConfig:
    return replace(cell, drafter=drafter_of(DrafterKind.none))


def _each_once(cells: Iterable[CellConfig]) -> list[CellConfig]:
    """Cells without those that cannot differ from an earlier one in their result."""
    by_settings: dict[str, CellConfig] = {}
    for cell in cells:
        by_settings.setdefault(repr(cell), cell)
    by_result: dict[str, CellConfig] = {}
    for cell in by_settings.values():
        by_result.setdefault(key_without(determinants(cell)), cell)
    return list(by_result.values())
