"""Takes the checkpoints that an experiment prefers where they lie in the local Hub cache, and else the zoo's models.

Target and drafter belong together: both are taken, or neither. Nothing is downloaded here: only a Hugging Face id named
as `target.path` starts a download. This module does not know how models are loaded.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from harness.config.drafter import DrafterConfig, NetworkConfig
from harness.config.models import TargetConfig, Weights
from harness.config.schema import SettingsError

ALONE = "there, but of no use without the other"


class ResolvedModels(NamedTuple):
    """The models of a cell."""

    target: TargetConfig
    drafter: DrafterConfig
    warning: str | None
    """Why the zoo stands in; None if it does not."""


def resolve_preferred(target: TargetConfig, drafter: DrafterConfig) -> ResolvedModels:
    """Put the folders of the preferred checkpoints into the paths that were not given.

    Raises:
        SettingsError: one of the two models was given, and the preferred other one is not there.
    """
    if target.weights is Weights.random or (target.is_built_in and target.preferred is None):
        return ResolvedModels(target, drafter, None)
    wanted = _wanted(target, drafter)
    found: dict[str, str] = {}
    reasons: dict[str, str] = {}
    for role, (name, revision) in wanted.items():
        place = local_checkpoint(name, revision)
        if isinstance(place, Path):
            found[role] = str(place)
        else:
            reasons[role] = place
    if reasons:
        _check_that_none_was_given(target, drafter, reasons)
        missed = (f"{name} ({reasons.get(role, ALONE)})" for role, (name, _) in wanted.items())
        return ResolvedModels(target, drafter, f"the zoo's models stand in for {' and '.join(missed)}")
    if "target" in found:
        target = replace(target, path=found["target"])
    if "drafter" in found:
        assert isinstance(drafter, NetworkConfig), "it is wanted of networks alone"
        drafter = replace(drafter, path=found["drafter"])
    return ResolvedModels(target, drafter, None)


def local_checkpoint(name: str, revision: str | None) -> Path | str:
    """The folder of a Hugging Face id in the local Hub cache, or why there is none that can be loaded."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    from harness.models.checkpoint import CheckpointError, read_json, weight_files

    try:
        folder = Path(snapshot_download(name, revision=revision, local_files_only=True))
        read_json(folder / "config.json")
        weight_files(folder)
    except LocalEntryNotFoundError:
        return "not in the local Hub cache"
    except HFValidationError as error:
        return f"no Hugging Face id ({str(error).splitlines()[0]})"
    except CheckpointError as error:
        return f"in the local Hub cache, but not loadable: {error}"
    return folder


def _wanted(target: TargetConfig, drafter: DrafterConfig) -> dict[str, tuple[str, str | None]]:
    """Role -> preferred id and revision of the models that were not given in another way."""
    wanted = {}
    if target.is_built_in and target.preferred is not None:
        wanted["target"] = target.preferred, target.revision
    is_given = drafter.path is not None or drafter.weights is Weights.random or not drafter.has_model
    if drafter.preferred is not None and not is_given:
        wanted["drafter"] = drafter.preferred, drafter.revision
    return wanted


def _check_that_none_was_given(target: TargetConfig, drafter: DrafterConfig, reasons: dict[str, str]) -> None:
    if not target.is_built_in:
        raise SettingsError(
            f"drafter.preferred: expected {drafter.preferred} for target {target.name}, found it "
            f"{reasons['drafter']}; give drafter.path"
        )
    if drafter.path is not None:
        raise SettingsError(
            f"target.preferred: expected {target.preferred} for drafter.path={drafter.path}, found it "
            f"{reasons['target']}; give target.path"
        )
