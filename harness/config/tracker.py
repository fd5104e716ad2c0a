"""Experiment trackers that results can be sent to, by name; each is a module of harness.report.trackers."""

from __future__ import annotations

from harness.config.union import Member

TRACKING = "output.tracking"
"""The setting that names one."""


class TrackerKind(Member):
    """Where results are sent beside the report: its name, with PACKAGE.MODULE:NAME of its `Tracker`."""

    mlflow = "mlflow", "harness.report.trackers.mlflow:MLFLOW"
    wandb = "wandb", "harness.report.trackers.wandb:WANDB"
    """Weights & Biases."""
