"""Finds and reads the records of runs: a run folder, its cells folder, one cell file, or a folder of run folders.

This module knows where records lie; it does not know what they mean.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.records import InconsistentRecordError
from harness.records.files import SUFFIX, read_cell
from harness.records.finished import WrittenFiles
from harness.records.schema import SCHEMA_VERSION, CellRecord, unreadable
from harness.records.strict_json import at, parse_json, typed

RUNS = Path("results/runs")
"""Where runs lie by name."""
MANIFEST = "run.json"
READABLE_MANIFESTS = tuple(range(1, SCHEMA_VERSION + 1))
"""Schemas of the records that manifests were written with."""
CELLS = "cells"
REPORT = "report.md"
PROFILE = "round_profile.md"
"""The table that a profile of a round leaves in its folder, which has no records."""
TABLES = "tables"


@dataclass(frozen=True)
class Run:
    """One run and the cells that are there."""

    name: str
    folder: Path
    manifest: Mapping[str, Any]
    """Empty where only cells were found."""
    cells: tuple[CellRecord, ...]
    """In the manifest's order."""
    missing: tuple[str, ...] = ()
    """Cells that the manifest names and that are not there: the run was interrupted or still goes on."""
    unlisted: tuple[str, ...] = ()
    """Cells in the folder that the manifest does not name: left out."""
    unreadable: tuple[str, ...] = ()
    """What is wrong with each file that cannot be used, which costs the others nothing; begins with its path."""

    @property
    def cells_folder(self) -> Path:
        """Where its records lie."""
        inside = self.folder / CELLS
        return inside if inside.is_dir() else self.folder


def named(name: str) -> Path:
    """The run of that name, or the last without a name that has this word, if there is one; else the path.

    It is the type of every argument that names a run.
    """
    path = Path(name)
    if len(path.parts) != 1:
        return path
    return RUNS / path if (RUNS / path).exists() else next(iter(unnamed_runs(name)), path)


_UNNAMED = re.compile(r"\d{8}-\d{6}-([a-z]+)", re.ASCII)
"""Folder of a run without a name: time and word (harness.runner.plan.unnamed)."""


def is_unnamed(name: str) -> bool:
    """Whether a run got its name from the time and its plan."""
    return _UNNAMED.fullmatch(name) is not None


def unnamed_runs(word: str) -> list[Path]:
    """Folders of the runs without a name that have a word, the last first."""
    found = ((_UNNAMED.fullmatch(path.name), path) for path in RUNS.glob("*-*-*"))
    return sorted((path for match, path in found if match and match[1] == word), reverse=True)


def last_run() -> Path | None:
    """The run in RUNS whose cells finished last, whatever its name; None where there is none."""
    found = []
    for path in RUNS.glob(f"*/{MANIFEST}"):
        # one that is removed meanwhile is not the last
        with suppress(OSError):
            found.append((path.stat().st_mtime_ns, path.parent))
    return max(found, default=(0, None))[1]


def read_runs(path: Path) -> list[Run]:
    """Read everything at a path that can be read.

    Args:
        path: a run folder (run.json and cells/), a cells folder, one cell file, or a folder of run folders.

    Raises:
        ValueError: nothing there, no cells, or none that is a record as the run wrote it; the message names the path.
    """
    if not path.exists():
        raise ValueError(
            f"{path}: no such file or folder; expected the name of a run in {RUNS}, a run folder, a cells folder or a "
            "cell file"
        )
    if path.is_file():
        name = path.parent.parent.name if path.parent.name == CELLS else path.parent.name
        return _with_cells(path, [_run_of(name, path.parent, [path])])
    if is_run(path):
        return _with_cells(path, [_read_run(path)])
    files = sorted(path.glob(f"*{SUFFIX}"))
    if files:
        name = path.parent.name if path.name == CELLS else path.name
        return _with_cells(path, [_run_of(name, path, files)])
    folders = sorted(item for item in path.iterdir() if is_run(item))
    if not folders:
        refuse_profile(path)
        raise ValueError(f"{path}: no cell records here; expected {MANIFEST} with {CELLS}/, *{SUFFIX}, or run folders")
    return _with_cells(path, [_read_or_named(folder) for folder in folders])


def is_run(folder: Path) -> bool:
    """Whether a folder looks like a run's."""
    return (folder / MANIFEST).is_file() or (folder / CELLS).is_dir()


def refuse_profile(folder: Path) -> None:
    """Raise ValueError where a folder holds a profile instead of a run."""
    if (folder / PROFILE).is_file() and not is_run(folder):
        raise ValueError(
            f"{folder}: expected a run with its records, found a profile of a round (rejection-lab profile), which has "
            f"none; its table is {folder / PROFILE}, its numbers are beside it"
        )


def _with_cells(path: Path, runs: list[Run]) -> list[Run]:
    if any(run.cells for run in runs):
        return runs
    refuse_unreadable(runs)
    reported = next((run for run in runs if is_report(run.folder)), None)
    if reported is None:
        raise ValueError(
            f"{path}: no finished cells, expected at least one {CELLS}/*{SUFFIX}; has the run got that far?"
        )
    command = reported.manifest.get("command")
    again = f"; run it again with: {command}" if command else ""
    raise ValueError(
        f"{path}: expected records ({CELLS}/*{SUFFIX}), found none: those of run {reported.name} are not kept here. "
        f"Its report is {reported.folder / REPORT}, its tables are beside it{again}"
    )


def refuse_unreadable(runs: Iterable[Run]) -> None:
    """Raise ValueError where no record of some runs can be used although there are some."""
    found = list(runs)
    unreadable = [text for run in found for text in run.unreadable]
    if unreadable and not any(run.cells for run in found):
        raise ValueError(unreadable[0] + (f" (and {len(unreadable) - 1} more)" if unreadable[1:] else ""))


def is_report(folder: Path) -> bool:
    """Whether a report of a run lies in a folder."""
    return (folder / REPORT).is_file() and (folder / TABLES).is_dir()


def _read_run(folder: Path) -> Run:
    manifest = read_manifest(folder)
    there = {item.name.removesuffix(SUFFIX): item for item in sorted((folder / CELLS).glob(f"*{SUFFIX}"))}
    listed = list(dict.fromkeys(manifest.get("cells", there)))
    run = _run_of(folder.resolve().name, folder, [there[cell_id] for cell_id in listed if cell_id in there])
    return replace(
        run,
        manifest=manifest,
        missing=tuple(cell_id for cell_id in listed if cell_id not in there),
        unlisted=tuple(cell_id for cell_id in there if cell_id not in listed),
    )


def _read_or_named(folder: Path) -> Run:
    """One run of several; one whose manifest cannot be read costs the others nothing."""
    try:
        return _read_run(folder)
    except ValueError as error:
        return Run(folder.resolve().name, folder, {}, (), unreadable=(str(error),))


def _run_of(name: str, folder: Path, files: Sequence[Path]) -> Run:
    """Read records of one folder; those of which the run has kept a digest must have it."""
    written = WrittenFiles(files[0].parent if files else folder)
    records, unreadable = list[CellRecord](), list[str]()
    for file in files:
        try:
            record = read_cell(file)
            written.check(file)
        except ValueError as error:
            unreadable.append(str(error))
        else:
            records.append(record)
    return Run(name, folder, {}, tuple(records), unreadable=tuple(unreadable))


_FIELDS: Mapping[str, Any] = {
    "schema_version": int,
    **dict.fromkeys(("name", "title", "command", "started", "plan"), str),
    "reference": str | None,
    **dict.fromkeys(("shows", "does_not_show"), str | list[str]),
    "cells": list[str],
    "places": list[int],
    "num_cells": int,
    "skipped": list[Mapping[str, Any]],
}
"""Types of what a manifest may hold; the first manifests lack some."""


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a run; empty where there is none.

    Raises:
        ValueError: the file is no manifest; the message names it.
    """
    path = folder / MANIFEST
    if not path.exists():
        return {}
    try:
        manifest = dict(typed(Mapping[str, Any], parse_json(path.read_bytes())))
        if manifest.get("schema_version") not in (None, *READABLE_MANIFESTS):
            raise InconsistentRecordError(unreadable(manifest["schema_version"], READABLE_MANIFESTS))
        for name in manifest.keys() & _FIELDS.keys():
            at(name, typed, _FIELDS[name], manifest[name])
        for index, item in enumerate(manifest.get("skipped", ())):
            at(f"skipped.{index}.cell", typed, Mapping[str, Any] | None, item.get("cell"))
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{path}: expected a run's manifest; {error}; the records can be read without it: give {folder / CELLS}"
        ) from error
    return manifest
