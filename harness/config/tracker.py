"""Experiment trackers that results can be sent to."""

from __future__ import annotations

from enum import Enum


class Tracker(Enum):
    """Where results are sent beside the report."""

    mlflow = "mlflow"
    wandb = "wandb"
    """Weights & Biases."""
