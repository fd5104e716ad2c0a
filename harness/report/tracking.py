"""Sends results to an experiment tracker: each cell is one run there, with its settings, numbers and labels.

This module knows neither trackers nor how cells are run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from numbers import Real
from pathlib import Path
from typing import Any

import pandas as pd

from harness.analysis.frame import results_frame
from harness.analysis.results import Results
from harness.report.trackers.tracker import SentCell, Tracker


def send_results(results: Results, tracker: Tracker, folder: Path) -> str:
    """Send all cells of one run.

    Args:
        results: of the run.
        tracker: where to.
        folder: of the run.

    Returns:
        Where they are now, in words.
    """
    return tracker.send(list(_sent(results)), folder)


def _sent(results: Results) -> Iterator[SentCell]:
    (run,) = results.runs
    for cell, (_, row) in zip(results.cells, results_frame(results.cells).iterrows(), strict=True):
        numbers = {
            str(name): float(value)
            for name, value in row.items()
            if isinstance(value, Real) and not isinstance(value, bool) and not pd.isna(value)
        }
        settings = dict(_flat(cell.record.config))
        yield SentCell(run.name, cell.record.cell_id, cell.record.has_failed, row["labels"], settings, numbers)


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
