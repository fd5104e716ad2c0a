"""Checks of config.json against a run, before anything is loaded: model types, token ids, positions.

Without torch. Models that do not lie in a folder yet and fields that are left out are for the loader.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from harness.config.backend import Local
from harness.config.cell import CellConfig
from harness.config.drafter import DrafterConfig
from harness.config.models import Layers, TargetConfig
from harness.config.schema import SettingsError
from harness.models.assumptions import assumed_of_drafter, assumed_of_target, assumed_of_vocabulary
from harness.models.check_files import check_drafter_files
from harness.models.checkpoint import CheckpointError
from harness.models.described import described_drafter, described_target
from harness.models.described_target import target_sizes_here
from harness.models.model_types import DENSE_TYPES, MODEL_TYPES, takes_general_path
from harness.models.ranks_fit import heads_misfit, rounded_misfit
from harness.models.rounded_weights import rounded_weights_here


def check_model_configs(cells: Sequence[CellConfig]) -> None:
    """Compare the configurations of a run's models with what can be run.

    Raises:
        SettingsError: a target whose weights or cache cannot take 8 bits, whose layers are not compiled or that several
            ranks cannot compute together, where that is asked for; or a drafter whose token ids mean something else,
            which is of another kind, or whose files are missing or damaged. Files of targets are looked at before
            (`check_target_files`).
    """
    checked: list[tuple[TargetConfig, DrafterConfig]] = []
    for cell in cells:
        models = cell.target, cell.drafter
        if models not in checked:
            checked.append(models)
            _check(*models)
        _check_rounding(cell)
        if isinstance(cell.backend, Local):
            _check_compiled(cell.target, cell.backend)
            _check_ranks(cell.target, cell.backend.tensor_parallel)


def _check(target: TargetConfig, drafter: DrafterConfig) -> None:
    with _naming("target.path"):
        assumed_of_target(target)
    try:
        assumed_of_vocabulary(target, drafter)
    except ValueError as error:
        proposer = described_drafter(drafter)
        assert proposer is not None, "it was compared"
        key = "drafter.shape" if drafter.shape is not None else "drafter.path"
        raise SettingsError(f"{key}: {proposer.source}: {error}") from error
    check_drafter_files(drafter, target)
    sizes = target_sizes_here(target)
    misfit = None if sizes is None else drafter.misfit(sizes.num_layers, sizes.name)
    if misfit is not None:
        raise SettingsError(misfit)
    with _naming("drafter" if drafter.path is None else "drafter.path"):
        assumed_of_drafter(drafter, target)


@contextmanager
def _naming(key: str) -> Iterator[None]:
    """Name the setting whose files hold a field or tensor that is not accounted for."""
    try:
        yield
    except CheckpointError as error:
        raise SettingsError(f"{key}: {error}") from error


def _check_rounding(cell: CellConfig) -> None:
    asked = [f"backend.{name}" for name, dtype in cell.backend.rounded.items() if dtype == "fp8"]
    described = described_target(cell.target) if asked else None
    model_type = None if described is None else described.fields.get("model_type")
    if described is not None and model_type in MODEL_TYPES and model_type not in DENSE_TYPES:
        raise SettingsError(
            f"{asked[0]}=fp8: expected a target of type {' or '.join(DENSE_TYPES)}, found {model_type!r} in "
            f"{described.source}; use {asked[0]}=auto"
        )


def _check_compiled(target: TargetConfig, backend: Local) -> None:
    described = described_target(target)
    is_known = described is not None or target.layers is not Layers.auto
    fields = {} if described is None else described.fields
    if not backend.compile or backend.tensor_parallel > 1 or not is_known or takes_general_path(fields, target.layers):
        return
    raise SettingsError(
        f"backend.compile: expected layers of transformers, found that target {target.name} runs by layers of our own; "
        "use target.layers=transformers or backend.compile=false"
    )


def _check_ranks(target: TargetConfig, num_ranks: int) -> None:
    if num_ranks == 1:
        return
    described = described_target(target)
    fields = {} if described is None else described.fields
    # the plans of these split attention; whether others do is known with their classes
    heads = fields if fields.get("model_type") in MODEL_TYPES else {}
    misfit = rounded_misfit(rounded_weights_here(target), num_ranks) or heads_misfit(heads, num_ranks)
    if misfit is not None:
        raise SettingsError(misfit)


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
