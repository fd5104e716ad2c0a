"""run.json: what a run is about and which of its cells have a record, in the plan's order; knows not how they ran."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from harness.compose.run_plan import RunPlan
from harness.records.fault_points import reached
from harness.records.files import write_atomically
from harness.records.runs import MANIFEST
from harness.records.schema import SCHEMA_VERSION


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
    started: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))

    def add(self, place: int, cell_id: str, has_failed: bool) -> None:
        """The record of a cell is there."""
        if has_failed:
            self.failed.add(cell_id)
        if cell_id not in self.places:
            self.finished.append(cell_id)
        self.places[cell_id] = place
        content = {
            "schema_version": SCHEMA_VERSION,
            "name": self.plan.name,
            "title": self.plan.title,
            "shows": self.plan.shows,
            "does_not_show": self.plan.does_not_show,
            "reference": self.plan.reference,
            "command": self.plan.command,
            "started": self.started,
            # arms finish in the order of their last block, which says nothing to a reader
            "cells": sorted(self.finished, key=lambda cell_id: self.places[cell_id]),
            "num_cells": len(self.plan.cells),
            "skipped": [{"cell": dict(values), "reason": reason} for values, reason in self.plan.skipped],
        }
        write_atomically(self.folder / MANIFEST, json.dumps(content, indent=1).encode())
        reached("the manifest is written")
