"""What is said about a run before its numbers: how much of it there is, when and how it was started, what it shows.

This module knows the manifest of a run; it does not know how it is printed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.records.runs import Run

TEXTS = {"shows": "What this shows", "does_not_show": "What it does not show"}
"""Name in the manifest -> heading."""


@dataclass(frozen=True)
class RunSummary:
    name: str
    num_cells: int
    num_planned: int
    duration_s: float
    """Wall time of the measured phases."""
    started: str
    """Empty where it is not known, as is the command."""
    command: str
    texts: tuple[tuple[str, tuple[str, ...]], ...]
    """(heading, paragraphs) of what the experiment says about itself."""


def run_summary(run: Run) -> RunSummary:
    """The summary of one run."""
    manifest = run.manifest
    texts = [(heading, _paragraphs(manifest, name)) for name, heading in TEXTS.items()]
    return RunSummary(
        name=run.name,
        num_cells=len(run.cells),
        num_planned=int(manifest.get("num_cells", len(run.cells) + len(run.missing))),
        duration_s=sum(cell.wall_s for cell in run.cells),
        started=str(manifest.get("started") or ""),
        command=str(manifest.get("command") or ""),
        texts=tuple((heading, paragraphs) for heading, paragraphs in texts if paragraphs),
    )


def _paragraphs(manifest: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """A text of the manifest, or a list of them."""
    value = manifest.get(name) or []
    items = value if isinstance(value, list) else [value]
    return tuple(" ".join(str(item).split()) for item in items if str(item).strip())
