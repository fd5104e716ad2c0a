"""MLflow: an experiment for each run, in it a run for each cell. MLFLOW_TRACKING_URI says where its store is."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from harness.report.trackers.tracker import SentCell, Tracker

_AT_ONCE = 100
"""Values that MLflow takes in one call."""


def _library() -> Any:
    return import_module("mlflow")


def _check() -> None:
    mlflow = _library()
    try:
        mlflow.MlflowClient().search_experiments(max_results=1)
    except Exception as error:
        raise ValueError(
            f"expected a store at {mlflow.get_tracking_uri()}, found none ({' '.join(str(error).split())[:300]}); "
            "name one in MLFLOW_TRACKING_URI"
        ) from error


def _send(cells: Sequence[SentCell], folder: Path) -> str:
    mlflow = _library()
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


MLFLOW = Tracker(_send, _check, package="mlflow")
