"""Puts the checkpoint folder of a GGUF file into the path of a model that this engine loads; a package may have it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from harness.config.cli.command_line import say
from harness.config.drafter import DrafterConfig, DrafterKind, NetworkConfig
from harness.config.models import TargetConfig, Weights
from harness.config.schema import SettingsError
from harness.models.checkpoint import CheckpointError
from harness.models.described import CONFIG
from harness.models.gguf import gguf_in
from harness.models.packaged import packaged

_Model = TypeVar("_Model", TargetConfig, NetworkConfig)


def target_of_gguf(target: TargetConfig) -> TargetConfig:
    """The target with the folder of its GGUF file, if it has one.

    Raises:
        SettingsError: transformers does not read the file, or a package is missing.
    """
    return _with_folder("target.path", target)


def drafter_of_gguf(drafter: DrafterConfig) -> DrafterConfig:
    """The same of a draft model; heads have no such files."""
    if not isinstance(drafter, NetworkConfig) or drafter.kind is not DrafterKind.draft_model:
        return drafter
    return _with_folder("drafter.path", drafter)


def _with_folder(key: str, model: _Model) -> _Model:
    path = model.path
    if path is None or model.weights is Weights.random or (Path(path).expanduser() / CONFIG).is_file():
        return model
    try:
        from_package = packaged(path, model.revision)
        if from_package is not None:
            path = str(from_package)
        if gguf_in(path) is None:
            return model
        # it imports transformers
        from harness.models.gguf_checkpoint import converted

        return replace(model, path=str(converted(path, say)))
    except CheckpointError as error:
        raise SettingsError(f"{key}: {error}") from error
