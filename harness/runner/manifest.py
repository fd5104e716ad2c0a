"""run.json: a run's title and its cells that have a record, in the plan's order; does not know how they ran.

Failures alone do not take the place of results: while no cell has any, an older manifest that lists results stays.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

from harness.records.fault_points import reached
from harness.records.files import SUFFIX, read_cell, write_atomically
from harness.records.runs import CELLS, MANIFEST, read_manifest
from harness.records.schema import SCHEMA_VERSION
from harness.runner.plan.run_plan import RunPlan


@dataclass
class Manifest:
    """Of a run under way; an older one stays until this run has finished something."""

    plan: RunPlan
    folder: Path
    finished: list[str]
    """Ids of the cells with a record, failed ones too, as they come; the caller sees them after an interruption too."""
    places: dict[str, int] = field(default_factory=dict)
    """Place in the plan's groups of each, by its id."""
    failed: set[str] = field(default_factory=set)
    """Ids of those that failed."""
    _unseen: dict[str, int] = field(default_factory=dict)
    """Listed by an earlier session, and not come to yet: place by id."""
    started: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    """Of the first session that left something."""

    def __post_init__(self) -> None:
        """List what an earlier session of the same plan has listed, so that a second interruption loses nothing."""
        if self.plan.resume.is_fresh:
            return
        try:
            earlier = read_manifest(self.folder)
        except ValueError:
            # the next cell that is finished makes it anew
            return
        if earlier.get("plan") == self.plan.key:
            there = {path.name.removesuffix(SUFFIX) for path in (self.folder / CELLS).glob(f"*{SUFFIX}")}
            listed = zip(earlier.get("cells", ()), earlier.get("places", ()), strict=False)
            self._unseen = {cell_id: place for cell_id, place in listed if cell_id in there}
            if self._unseen and isinstance(earlier.get("started"), str):
                self.started = earlier["started"]

    @cached_property
    def _would_replace_results(self) -> bool:
        """Whether an earlier session left a manifest that lists a cell with results."""
        try:
            listed = read_manifest(self.folder).get("cells", ())
        except ValueError:
            return False
        return any(_has_results(self.folder / CELLS / f"{cell_id}{SUFFIX}") for cell_id in listed)

    def add(self, place: int, cell_id: str, has_failed: bool) -> None:
        """The record of a cell is there."""
        if has_failed:
            self.failed.add(cell_id)
        if cell_id not in self.places:
            self.finished.append(cell_id)
        self.places[cell_id] = place
        if len(self.failed) == len(self.finished) and self._would_replace_results:
            return
        self._unseen = {name: other for name, other in self._unseen.items() if name != cell_id and other != place}
        places = self.places | self._unseen
        # arms finish in the order of their last block, which says nothing to a reader
        cells = sorted([*self.finished, *self._unseen], key=lambda cell_id: places[cell_id])
        content = {
            "schema_version": SCHEMA_VERSION,
            "name": self.plan.name,
            "title": self.plan.title,
            "shows": self.plan.shows,
            "does_not_show": self.plan.does_not_show,
            "reference": self.plan.reference,
            "command": self.plan.command,
            "started": self.started,
            "plan": self.plan.key,
            "cells": cells,
            "places": [places[cell_id] for cell_id in cells],
            "num_cells": len(self.plan.cells),
            "skipped": [{"cell": dict(values), "reason": reason} for values, reason in self.plan.skipped],
        }
        write_atomically(self.folder / MANIFEST, json.dumps(content, indent=1).encode())
        reached("the manifest is written")


def _has_results(path: Path) -> bool:
    try:
        return not read_cell(path).has_failed
    except (ValueError, OSError):
        return False
