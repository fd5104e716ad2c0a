"""What is wrong with the files of a checkpoint, told before anything is loaded: its settings, headers, tokenizer, kind.

Needs no torch. What is no folder is the id of one, whose files are for the loader.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.config.drafter import DrafterConfig, DrafterKind
from harness.config.models import Layers, TargetConfig, Weights
from harness.config.schema import SettingsError
from harness.models.accounting import OF_DRAFTER, OF_TARGET, Accepted, head_account, model_account
from harness.models.checkpoint import (
    ID_TYPES,
    WEIGHT_TYPES,
    CheckpointError,
    named,
    no_tensor,
    other_shape,
    other_type,
    read_fields,
    read_json,
    stored_tensors,
)
from harness.models.checkpoint_kind import LANGUAGE_MODEL, NAMES, check_own_cache, kind_of
from harness.models.described import CONFIG
from harness.models.described_target import target_sizes_here
from harness.models.head_fits import check_head_fields
from harness.models.model_types import LENGTH_DEPENDENT_ROPE, MODEL_TYPES, is_quantized, of_length, takes_general_path
from harness.models.mtp_layouts import general_mtp, text_fields
from harness.models.rounded_weights import rounded_weights
from harness.models.safetensors_header import StoredTensor
from harness.models.tensor_shapes import head_shapes, model_shapes, mtp_shapes, wrong_size
from harness.models.tokenizer import eos_token_ids
from harness.models.tokenizer_files import check_tokenizer_files
from harness.models.zoo import zoo_path

GENERATION_CONFIG = "generation_config.json"


def check_target_files(target: TargetConfig) -> None:
    """Look at the folder of a target.

    Raises:
        SettingsError: a file is missing or damaged, or what lies there is no language model that runs.
    """
    if target.is_built_in and target.weights is Weights.checkpoint:
        _check_zoo("target", "target")
    folder = _folder(target)
    if folder is None:
        return
    try:
        # code that comes with a checkpoint may read other files, and turn one type into another
        if target.trust_remote_code:
            _tensors(folder, target.weights)
        else:
            _check_language_model(folder, target.weights, OF_TARGET, target.layers)
            check_tokenizer_files(folder, is_needed=target.weights is Weights.checkpoint)
    except CheckpointError as error:
        raise SettingsError(f"target.path: {error}") from error


def check_served_tokenizer(target: TargetConfig) -> None:
    """Look at the tokenizer in the folder of a target that a server loads: prompts are made with it here.

    Raises:
        SettingsError: there is none, or it is damaged.
    """
    folder = _folder(target)
    if folder is not None and not target.trust_remote_code:
        try:
            check_tokenizer_files(folder, is_needed=target.weights is Weights.checkpoint)
        except CheckpointError as error:
            raise SettingsError(f"target.path: {error}") from error


def check_drafter_files(drafter: DrafterConfig, target: TargetConfig) -> None:
    """Look at the folder of a drafter for a target; of an MTP layer it is normally the target's.

    Raises:
        SettingsError: a file is missing or damaged, or what lies there is another kind of drafter.
    """
    if not drafter.has_model:
        return
    in_target = drafter.traits.in_target and drafter.path is None
    is_drawn = Weights.random in (drafter.weights, target.weights if in_target else None)
    weights = Weights.random if is_drawn else Weights.checkpoint
    if target.is_built_in and drafter.path is None and not is_drawn:
        _check_zoo("drafter", drafter.kind.value)
    folder = _folder(target if in_target else drafter)
    if folder is None:
        return
    try:
        if drafter.kind is DrafterKind.mtp:
            _check_mtp(folder, weights)
        elif drafter.kind is DrafterKind.draft_model:
            _check_language_model(folder, weights, OF_DRAFTER, Layers.auto)
        else:
            _check_head(folder, drafter, target, weights)
        check_tokenizer_files(folder, is_needed=False)
    except CheckpointError as error:
        raise SettingsError(f"{'drafter' if in_target else 'drafter.path'}: {error}") from error


def _check_zoo(key: str, kind: str) -> None:
    """Unpack the weights of a built-in model. Raises SettingsError where that cannot be done."""
    try:
        zoo_path(kind)
    except ValueError as error:
        raise SettingsError(f"{key}: {error}") from error


def _folder(model: TargetConfig | DrafterConfig) -> Path | None:
    folder = None if model.path is None else Path(model.path).expanduser()
    return None if folder is None or not folder.is_dir() else folder


def _fields(folder: Path) -> dict[str, Any]:
    """The fields of config.json."""
    if not (folder / CONFIG).is_file():
        within = [path.parent for path in sorted(folder.glob(f"*/{CONFIG}"))]
        hint = f"; {within[0]} has one" if len(within) == 1 else ""
        raise CheckpointError(f"expected a folder with a checkpoint, found no {CONFIG} in {folder}{hint}")
    if (folder / GENERATION_CONFIG).is_file():
        read_json(folder / GENERATION_CONFIG)
    fields = read_fields(folder / CONFIG)
    check_own_cache(fields, folder / CONFIG)
    return fields


def _tensors(folder: Path, weights: Weights) -> dict[str, StoredTensor]:
    """The tensors by their headers; none where weights are random."""
    return {} if weights is Weights.random else stored_tensors(folder)


def _check_language_model(folder: Path, weights: Weights, accepted: Accepted, layers: Layers) -> None:
    """Raise CheckpointError for anything but a causal language model of a type that runs."""
    fields = _fields(folder)
    _check_kind(folder, LANGUAGE_MODEL, fields, {})
    model_type = fields.get("model_type")
    vocab_size = fields.get("vocab_size")
    if takes_general_path(fields, layers):
        # sizes and shapes are for transformers
        eos_token_ids(None, None, folder, vocab_size if type(vocab_size) is int else None)
        tensors = _tensors(folder, weights)
        _check_kind(folder, LANGUAGE_MODEL, fields, tensors)
        if not is_quantized(fields):
            _check_types(folder, tensors)
        elif tensors and all(tensor.dtype in WEIGHT_TYPES for tensor in tensors.values()):
            found = ", ".join(sorted({tensor.dtype for tensor in tensors.values()}))
            raise CheckpointError(
                f"expected tensors of {rounded_weights(fields)}, as quantization_config in {folder / CONFIG} says, "
                f"found {found} alone; take the field out, or take the checkpoint that it is of"
            )
        return
    if not isinstance(model_type, str) or model_type not in MODEL_TYPES:
        raise CheckpointError(
            f"expected model_type {' or '.join(MODEL_TYPES)}, found {model_type!r} in {folder / CONFIG}; "
            "target.layers=auto runs others by the layers of transformers"
        )
    _check_sizes(folder, fields)
    # what no one can vouch for, before shapes that follow from it
    model_account(folder, fields, accepted, layers=layers)
    eos_token_ids(None, None, folder, vocab_size)
    tensors = _tensors(folder, weights)
    _check_kind(folder, LANGUAGE_MODEL, fields, tensors)
    _check_types(folder, tensors)
    _check_shapes(folder, model_shapes(fields), tensors)


def _check_head(folder: Path, drafter: DrafterConfig, target: TargetConfig, weights: Weights) -> None:
    """Raise CheckpointError for anything but a draft head of a kind for a target."""
    fields, tensors, kind = _fields(folder), _tensors(folder, weights), drafter.kind.value
    _check_kind(folder, kind, fields, tensors)
    _check_types(folder, tensors)
    _check_sizes(folder, fields)
    head_account(kind, folder, fields, OF_DRAFTER)
    sizes = target_sizes_here(target)
    if sizes is None:
        # of a target on the Hub; its loader compares them
        return
    with named(folder / CONFIG):
        num_joined = check_head_fields(kind, fields, sizes, drafter.head_choices)
    if kind != "medusa":
        # of those only the names of the tensors say how many there are
        _check_shapes(folder, head_shapes(kind, fields, tensors, num_joined), tensors)


def _check_sizes(folder: Path, fields: Mapping[str, Any]) -> None:
    """Raise CheckpointError where a size is none."""
    nested = fields.get("transformer_layer_config")
    wrong = wrong_size(fields) or (wrong_size(nested) if isinstance(nested, Mapping) else None)
    if wrong is not None:
        raise CheckpointError(f"{folder / CONFIG}: {wrong}")
    for layer in (fields, nested if isinstance(nested, Mapping) else {}):
        for rope in (layer.get("rope_parameters"), layer.get("rope_scaling")):
            rope_type = (rope.get("rope_type") or rope.get("type")) if isinstance(rope, Mapping) else None
            if rope_type in LENGTH_DEPENDENT_ROPE:
                raise CheckpointError(f"{folder / CONFIG}: {of_length(rope_type)}")


def _check_shapes(folder: Path, expected: Mapping[str, Sequence[int]], tensors: Mapping[str, StoredTensor]) -> None:
    """Raise CheckpointError where a tensor is missing, or has another shape; nothing where none is read."""
    for name, shape in expected.items() if tensors else ():
        if name not in tensors:
            raise CheckpointError(no_tensor(folder, name, shape, sorted(tensors)))
        if tensors[name].shape != tuple(shape):
            raise CheckpointError(other_shape(folder, name, shape, tensors[name].shape))


def _check_types(folder: Path, tensors: Mapping[str, StoredTensor]) -> None:
    """Raise CheckpointError for weights of fewer bits without a word on how to read them, and ids that are none."""
    for name, tensor in tensors.items():
        of_ids = name in ("d2t", "t2d")
        is_read = of_ids or name.endswith((".weight", ".bias"))
        if is_read and tensor.dtype not in (ID_TYPES if of_ids else WEIGHT_TYPES):
            raise CheckpointError(other_type(folder, name, tensor.dtype, of_ids))


def _check_kind(folder: Path, wanted: str, fields: Mapping[str, Any], tensors: Mapping[str, StoredTensor]) -> None:
    """Raise CheckpointError where a folder holds something else, as far as that can be told."""
    found = kind_of(fields, tensors)
    if found is not None and found != wanted:
        raise CheckpointError(f"expected {NAMES[wanted]}, found {NAMES[found]} in {folder}; drafter={found} runs it")


def _check_mtp(folder: Path, weights: Weights) -> None:
    """Raise CheckpointError where a target's folder has no MTP layer."""
    fields = _fields(folder)
    if fields.get("model_type") not in MODEL_TYPES:
        tensors = _tensors(folder, weights)
        layout = general_mtp(folder, fields, tensors or None)
        prefix = layout.first(text_fields(fields).get("num_hidden_layers", 0))
        _check_types(folder, {name: item for name, item in tensors.items() if name.startswith(prefix)})
        return
    count, first = fields.get("num_nextn_predict_layers") or 0, fields.get("num_hidden_layers")
    if not isinstance(count, int) or count < 1:
        raise CheckpointError(
            f"expected a target with an MTP layer (num_nextn_predict_layers 1 or more), found {count} in "
            f"{folder / CONFIG}; choose another drafter"
        )
    prefix, tensors = f"model.layers.{first}.", _tensors(folder, weights)
    _check_sizes(folder, fields)
    if tensors and not any(name.startswith(prefix) for name in tensors):
        raise CheckpointError(
            f"expected the tensors {prefix}* that num_nextn_predict_layers {count} announces, found none in {folder}; "
            "the MTP layer was left out of this copy of the checkpoint"
        )
    _check_shapes(folder, mtp_shapes(fields), tensors)
