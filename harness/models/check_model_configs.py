"""Checks of config.json against a run, before anything is loaded: model types, sizes of vocabularies, positions.

JSON and paths only. Models that do not lie in a folder yet, files that cannot be read and fields that are left out are
for the loader.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from harness.models.model_types import DENSE_TYPES, MODEL_TYPES
from harness.models.shape import SHAPES, read_shape
from harness.models.shard_index import INDEX, missing_shards
from harness.models.zoo import ZOO
from harness.records.strict_json import parse_json
from harness.settings.cell import CellConfig
from harness.settings.models import DrafterConfig, TargetConfig, Weights
from harness.settings.schema import SettingsError

CONFIG = "config.json"


class _Described(NamedTuple):
    """The fields of one model and where they come from."""

    fields: dict[str, Any]
    source: Path

    @property
    def vocab_size(self) -> object:
        """Of the layer, where a file tells it apart from the head; None where the file does not say."""
        layer = self.fields.get("transformer_layer_config")
        return (layer if isinstance(layer, dict) else self.fields).get("vocab_size")


def check_model_configs(cells: Sequence[CellConfig]) -> None:
    """Compare the configurations of a run's models with what can be run.

    Raises:
        SettingsError: a target of a type that is not supported, or whose weights or cache cannot take 8 bits, a drafter
            with another vocabulary size, or files of a checkpoint that are missing: config.json, or what its index
            names.
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
    described = _target(target)
    if described is None:
        return
    model_type = described.fields.get("model_type")
    # code that comes with a checkpoint may turn one type into another
    if model_type is not None and model_type not in MODEL_TYPES and not target.trust_remote_code:
        raise SettingsError(
            f"target.path: expected model_type {' or '.join(MODEL_TYPES)}, found {model_type!r} in "
            f"{described.source}; choose a target that this version runs"
        )
    proposer = _drafter(drafter)
    if proposer is None or None in (described.vocab_size, proposer.vocab_size):
        return
    if proposer.vocab_size != described.vocab_size:
        key = "drafter.shape" if drafter.shape is not None else "drafter.path"
        raise SettingsError(
            f"{key}: expected vocab_size {described.vocab_size}, that of target {target.name}, found "
            f"{proposer.vocab_size} in {proposer.source}; the drafter was made for another target, choose one for this"
        )


def _check_rounding(cell: CellConfig) -> None:
    dtypes = {"weight_dtype": cell.backend.weight_dtype, "kv_cache_dtype": cell.backend.kv_cache_dtype}
    asked = [f"backend.{name}" for name, dtype in dtypes.items() if dtype == "fp8"]
    described = _target(cell.target) if asked else None
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
    described, num_new = _target(cell.target), cell.decoding.max_new_tokens
    positions = None if described is None else described.fields.get("max_position_embeddings")
    known = [number for number in (positions, cell.backend.max_length) if isinstance(number, int)]
    if known and num_new >= min(known):
        raise SettingsError(
            f"decoding.max_new_tokens: expected fewer than {min(known)}, the tokens that prompt and answer may have "
            f"together (positions of target {cell.target.name}, backend.max_length), found {num_new}: every prompt "
            "would be left out"
        )


def _target(target: TargetConfig) -> _Described | None:
    if target.shape is not None:
        return _of_shape(target.shape)
    return _of_folder(ZOO / "target" if target.path is None else Path(target.path))


def _drafter(drafter: DrafterConfig) -> _Described | None:
    """None also for a head that takes its sizes from the target."""
    if not drafter.has_model:
        return None
    if drafter.shape is not None:
        return _of_shape(drafter.shape)
    if drafter.path is not None:
        return _of_folder(Path(drafter.path))
    follows = drafter.weights is Weights.random and "shape" not in drafter.traits.settings
    if follows or drafter.traits.in_target:
        return None
    return _of_folder(ZOO / drafter.kind.value)


def _of_shape(name: str) -> _Described:
    return _Described(read_shape(name).config, SHAPES / f"{name}.json")


def _of_folder(folder: Path) -> _Described | None:
    source = folder.expanduser() / CONFIG
    try:
        fields = parse_json(source.read_bytes())
    except (OSError, ValueError):
        # the loader says what is missing or broken
        return None
    return _Described(fields, source) if isinstance(fields, dict) else None
