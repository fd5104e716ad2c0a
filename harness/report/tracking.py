"""Sends results to an experiment tracker: each cell is one run there, with its settings, numbers and labels.

The tracker's own environment variables say where it is. Its run is named after the run here and the cell, so that
results that are sent again take the place of those before. This module does not know how cells are run.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from numbers import Real
from pathlib import Path
from typing import Any

import pandas as pd

from harness.analysis.frame import results_frame
from harness.analysis.results import Results
from harness.config.schema import SettingsError
from harness.config.tracker import Tracker

PROJECT = "rejection-lab"
"""In Weights & Biases, unless WANDB_PROJECT names another."""
_AT_ONCE = 100
"""Values that MLflow takes in one call."""


@dataclass(frozen=True)
class Sent:
    """What is sent of a cell."""

    run: str
    """Name of the run here."""
    cell_id: str
    has_failed: bool
    labels: str
    settings: Mapping[str, Any]
    """By key, such as decoding.temperature."""
    numbers: Mapping[str, float]
    """By column of COLUMNS.md; those that are known."""

    @property
    def name(self) -> str:
        return f"{self.run}-{self.cell_id}"


def check_tracker(tracker: Tracker) -> None:
    """Raise SettingsError if results cannot be sent to a tracker; asked before anything is run."""
    library = _library(tracker)
    if tracker is Tracker.mlflow:
        try:
            library.MlflowClient().search_experiments(max_results=1)
        except Exception as error:
            raise SettingsError(
                f"output.tracking=mlflow: expected a store at {library.get_tracking_uri()}, found none "
                f"({' '.join(str(error).split())[:300]}); name one in MLFLOW_TRACKING_URI"
            ) from error


def send_results(results: Results, tracker: Tracker, folder: Path) -> str:
    """Send all cells of one run.

    Args:
        results: of the run.
        tracker: where to.
        folder: of the run; what Weights & Biases writes offline goes there.

    Returns:
        Where they are now, in words.
    """
    cells = list(_sent(results))
    library = _library(tracker)
    return _to_mlflow(library, cells) if tracker is Tracker.mlflow else _to_wandb(library, cells, folder)


def _sent(results: Results) -> Iterator[Sent]:
    (run,) = results.runs
    for cell, (_, row) in zip(results.cells, results_frame(results.cells).iterrows(), strict=True):
        numbers = {
            str(name): float(value)
            for name, value in row.items()
            if isinstance(value, Real) and not isinstance(value, bool) and not pd.isna(value)
        }
        settings = dict(_flat(cell.record.config))
        yield Sent(run.name, cell.record.cell_id, cell.record.has_failed, row["labels"], settings, numbers)


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _to_mlflow(mlflow: Any, cells: list[Sent]) -> str:
    client, entities = mlflow.MlflowClient(), mlflow.entities
    for cell in cells:
        known = client.get_experiment_by_name(cell.run)
        experiment = client.create_experiment(cell.run) if known is None else known.experiment_id
        for earlier in client.search_runs([experiment], f"tags.cell_id = '{cell.cell_id}'"):
            # settings of a run cannot be changed
            client.delete_run(earlier.info.run_id)
        tags = {"cell_id": cell.cell_id, "labels": cell.labels}
        run = client.create_run(experiment, tags=tags, run_name=cell.name).info
        params = [entities.Param(name, str(value)) for name, value in cell.settings.items()]
        metrics = [entities.Metric(name, value, run.start_time, 0) for name, value in cell.numbers.items()]
        for start in range(0, max(len(params), len(metrics)), _AT_ONCE):
            part = slice(start, start + _AT_ONCE)
            client.log_batch(run.run_id, metrics=metrics[part], params=params[part])
        client.set_terminated(run.run_id, "FAILED" if cell.has_failed else "FINISHED")
    return str(mlflow.get_tracking_uri())


def _to_wandb(wandb: Any, cells: list[Sent], folder: Path) -> str:
    mode = os.environ.get("WANDB_MODE", "offline")
    # what runs on this machine and what it prints is not sent
    settings = wandb.Settings(
        console="off", silent=True, disable_git=True, save_code=False, x_disable_meta=True, x_disable_stats=True
    )
    for cell in cells:
        run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            id=cell.name,
            name=cell.name,
            group=cell.run,
            config={**cell.settings, "cell_id": cell.cell_id, "labels": cell.labels},
            allow_val_change=True,
            resume="allow",
            mode=mode,
            dir=folder,
            settings=settings,
        )
        run.summary.update(dict(cell.numbers))
        run.finish(exit_code=int(cell.has_failed))
    return f"{folder / 'wandb'}; wandb sync sends them" if mode == "offline" else "Weights & Biases"


def _library(tracker: Tracker) -> Any:
    return import_module({Tracker.mlflow: "mlflow", Tracker.wandb: "wandb"}[tracker])
