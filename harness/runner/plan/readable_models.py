"""Puts a folder that readers of checkpoints know into the path of a model: packed weights are unpacked, and the GGUF
file of a model that this engine loads is converted; a package may have that. A head without a path may be built in."""

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
from harness.models.packed_weights import unpacked
from harness.models.zoo import head_path

_Model = TypeVar("_Model", TargetConfig, NetworkConfig)


def readable_target(target: TargetConfig, *, is_loaded: bool) -> TargetConfig:
    """The target with the folder of its weights, where they are packed or in a GGUF file.

    Args:
        target: of a cell.
        is_loaded: here, and not by a server.

    Raises:
        SettingsError: packed weights are damaged, transformers does not read the file, or a package is missing.
    """
    return _with_folder("target.path", target, may_be_gguf=is_loaded)


def readable_drafter(drafter: DrafterConfig, target: TargetConfig, *, is_loaded: bool) -> DrafterConfig:
    """The same of a drafter for a target, of GGUF files draft models alone have some; a head may be built in.

    Args:
        drafter: of a cell.
        target: as it was given, not yet readable.
        is_loaded: as for a target.
    """
    if not isinstance(drafter, NetworkConfig):
        return drafter
    # a head that was trained for a target says nothing of random weights
    lacks_path = drafter.path is None and Weights.random not in (drafter.weights, target.weights)
    is_main = target.path is not None and target.revision is None
    if lacks_path and is_main and target.path in drafter.traits.built_in_for:
        if not is_loaded:
            raise SettingsError(
                "drafter: expected drafter.path with a server, found none: the head that is built in for "
                f"{target.path} takes the target's output matrix (it has no lm_head), which no other engine was seen "
                "to read; give one with lm_head.weight (train-head output=own), or use backend=local"
            )
        try:
            return replace(drafter, path=str(head_path(target.path, drafter.kind.value)))
        except ValueError as error:
            raise SettingsError(f"drafter: {error}") from error
    return _with_folder("drafter.path", drafter, may_be_gguf=is_loaded and drafter.kind is DrafterKind.draft_model)


def _with_folder(key: str, model: _Model, may_be_gguf: bool) -> _Model:
    path = model.path
    if path is None or model.weights is Weights.random:
        return model
    try:
        folder = Path(path).expanduser()
        found = unpacked(folder)
        if found != folder:
            return replace(model, path=str(found))
        if not may_be_gguf or (folder / CONFIG).is_file():
            return model
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
