"""Speculators as the package `speculators` wrote and ran them: files that scripts record_*_speculators.py recorded."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from harness.models.target import TargetModel


class RecordedSpeculators:
    """Those of one algorithm."""

    def __init__(self, algorithm: str) -> None:
        self._folder = Path(__file__).parents[1] / "data" / f"{algorithm}_speculators"
        self.cases: dict[str, Any] = json.loads((self._folder / "cases.json").read_text())["cases"]

    def runs(self) -> dict[str, Tensor]:
        """Inputs and outputs, as the docstring of the script lists them."""
        return load_file(self._folder / "runs.safetensors")

    def load(self, name: str, folder: Path, target: TargetModel, load_head: Callable[[Path, TargetModel], Any]) -> Any:
        """The head of a case from the files as the package wrote them, silently."""
        case, weights = self.cases[name], load_file(self._folder / "weights.safetensors")
        save_file({key: weights[key] for key in case["tensors"]}, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps(case["config"]))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return load_head(folder, target)
