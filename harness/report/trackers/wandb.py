"""Weights & Biases: a run for each cell, in files of the run's folder unless WANDB_MODE says otherwise."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from harness.report.trackers.tracker import SentCell, Tracker

PROJECT = "rejection-lab"
"""Unless WANDB_PROJECT names another."""


def _library() -> Any:
    return import_module("wandb")


def _check() -> None:
    _library()


def _send(cells: Sequence[SentCell], folder: Path) -> str:
    wandb, mode = _library(), os.environ.get("WANDB_MODE", "offline")
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


WANDB = Tracker(_send, _check, package="wandb")
