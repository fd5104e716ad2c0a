"""Checks of config.json against a run, before anything is loaded: model types, token ids, positions.

JSON and paths only. Models that do not lie in a folder yet, files that cannot be read and fields that are left out are
for the loader.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.models.assumptions import assumed_of_vocabulary
from harness.models.described import CONFIG, described_drafter, described_target
from harness.models.model_types import DENSE_TYPES, MODEL_TYPES
from harness.models.shard_index import INDEX, missing_shards
from harness.settings.cell import CellConfig
from harness.settings.models import DrafterConfig, TargetConfig, Weights
from harness.settings.schema import SettingsError


def check_model_configs(cells: Sequence[CellConfig]) -> None:
    """Compare the configurations of a run's models with what can be run.

    Raises:
        SettingsError: a target of a type that is not supported, or whose weights or cache cannot take 8 bits, a drafter
            whose token ids mean something else, or files of a checkpoint that are missing: config.json, or what its
            index names.
    """
    checked: list[tuple[TargetConfig, DrafterConfig]] = []
    for cell in cells:
        models = cell.target, cell.drafter
        if models not in checked:
            checked.append(models)
            _check(*models)
        _check_rounding(cell)


def _check(target: TargetConfig, drafter: DrafterConfig) -> None:
    check_files("target.path", target)
    if drafter.has_model:
        check_files("drafter.path", drafter)
    described = described_target(target)
    if described is None:
        return
    model_type = described.fields.get("model_type")
    # code that comes with a checkpoint may turn one type into another
    if model_type is not None and model_type not in MODEL_TYPES and not target.trust_remote_code:
        raise SettingsError(
            f"target.path: expected model_type {' or '.join(MODEL_TYPES)}, found {model_type!r} in "
            f"{described.source}; choose a target that this version runs"
        )
    try:
        assumed_of_vocabulary(target, drafter)
    except ValueError as error:
        proposer = described_drafter(drafter)
        assert proposer is not None, "it was compared"
        key = "drafter.shape" if drafter.shape is not None else "drafter.path"
        raise SettingsError(f"{key}: {proposer.source}: {error}") from error


def _check_rounding(cell: CellConfig) -> None:
    dtypes = {"weight_dtype": cell.backend.weight_dtype, "kv_cache_dtype": cell.backend.kv_cache_dtype}
    asked = [f"backend.{name}" for name, dtype in dtypes.items() if dtype == "fp8"]
    described = described_target(cell.target) if asked else None
    model_type = None if described is None else described.fields.get("model_type")
    if described is not None and model_type in MODEL_TYPES and model_type not in DENSE_TYPES:
        raise SettingsError(
            f"{asked[0]}=fp8: expected a target of type {' or '.join(DENSE_TYPES)}, found {model_type!r} in "
            f"{described.source}; use {asked[0]}=auto"
        )


def check_files(key: str, model: TargetConfig | DrafterConfig) -> None:
    """Raise SettingsError where files of a checkpoint are missing: before a night's other cells have run."""
    if model.path is None:
        return
    folder = Path(model.path).expanduser()
    missing = [] if model.weights is Weights.random else missing_shards(folder)
    if missing:
        raise SettingsError(
            f"{key}: expected the files that {folder / INDEX} names, found no {', '.join(missing)}; fetch them again"
        )
    # what is no folder is the id of one
    if folder.is_dir() and not (folder / CONFIG).is_file():
        raise SettingsError(f"{key}: expected a folder with a checkpoint, found no {CONFIG} in {folder}")


def check_length(cell: CellConfig) -> None:
    """Raise SettingsError where the longest answer of a cell that plays prompts leaves no position for any of them."""
    described, num_new = described_target(cell.target), cell.decoding.max_new_tokens
    positions = None if described is None else described.fields.get("max_position_embeddings")
    known = [number for number in (positions, cell.backend.max_length) if isinstance(number, int)]
    if known and num_new >= min(known):
        raise SettingsError(
            f"decoding.max_new_tokens: expected fewer than {min(known)}, the tokens that prompt and answer may have "
            f"together (positions of target {cell.target.name}, backend.max_length), found {num_new}: every prompt "
            "would be left out"
        )
