"""Folders without weights, from which a server draws random ones of the sizes that this engine draws them for."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from harness.backends.server.prompts import TOKENIZER_FILES, drafter_path, target_path
from harness.config.cell import CellConfig
from harness.config.drafter import DrafterKind
from harness.config.models import TargetConfig, Weights


def draws_weights(cell: CellConfig) -> bool:
    """Whether its models have random weights."""
    return cell.target.weights is Weights.random


def served_target(cell: CellConfig) -> str:
    """The target's folder or Hugging Face id."""
    if not draws_weights(cell):
        return target_path(cell.target)
    return str(random_target_folder(cell.target, Path(cell.server.log_folder).resolve()))


def served_drafter(cell: CellConfig) -> str:
    """The drafter's folder or Hugging Face id; empty for one without a checkpoint of its own."""
    if not draws_weights(cell) or not cell.drafter.has_model or cell.drafter.traits.in_target:
        return drafter_path(cell)
    return str(random_drafter_folder(cell, Path(cell.server.log_folder).resolve()))


def random_target_folder(target: TargetConfig, folder: Path) -> Path:
    """The folder of a target: its sizes as a config.json, and the tokenizer that stands in.

    Args:
        target: with random weights.
        folder: where such folders lie.
    """
    from harness.models.checkpoint import WITHOUT_WEIGHTS, checkpoint_folder
    from harness.models.token_ids import has_tokenizer
    from harness.models.zoo import zoo_path

    own = None if target.path is None else checkpoint_folder(target.path, target.revision, WITHOUT_WEIGHTS)
    tokenizer = own if own is not None and has_tokenizer(own) else zoo_path("target", with_weights=False)
    path = target_path(target) if target.shape is None else None
    return _written("target", _model_fields(path, target.shape), folder, tokenizer)


def random_drafter_folder(cell: CellConfig, folder: Path) -> Path:
    """The folder of a drafter with random weights, in the layouts of the public checkpoints.

    Raises:
        ValueError: its sizes do not fit the target's.
    """
    drafter = cell.drafter
    if drafter.kind is DrafterKind.draft_model:
        return _written("drafter", _model_fields(drafter.path, drafter.shape), folder)
    from harness.drafters.registry import load_head
    from harness.models.decoder_layer import layer_fields
    from harness.models.eagle3 import Eagle3Head
    from harness.models.meta import META
    from harness.models.random_target import random_target

    target = cell.target
    loaded = load_head(drafter, random_target(target.path, shape=target.shape, device=META, revision=target.revision))
    assert loaded is not None, "a drafter with weights of its own"
    config = loaded.head.config
    if not isinstance(loaded.head, Eagle3Head):
        return _written("drafter", config.to_dict(), folder)
    fields = {
        "architectures": ["LlamaForCausalLMEagle3"],
        **layer_fields(config.layer),
        "num_hidden_layers": 1,
        "draft_vocab_size": config.draft_vocab_size,
        "target_hidden_size": config.target_hidden_size,
    }
    return _written("drafter", fields, folder)


def _model_fields(path: str | None, shape: str | None) -> dict[str, Any]:
    """The config.json of a causal language model; MTP layers behind its last are left out, which servers refuse."""
    from harness.models.decoder_layer import layer_types
    from harness.models.random_target import architecture

    given = architecture(path, shape)
    fields = {key: value for key, value in given.fields.items() if key != "num_nextn_predict_layers"}
    return {"architectures": [layer_types(given.config, given.source).causal_lm.__name__], **fields}


def _written(role: str, fields: Mapping[str, Any], folder: Path, tokenizer: Path | None = None) -> Path:
    """A folder named after its config.json, whole or not at all, because another process may look for it."""
    text = json.dumps(fields, indent=2, sort_keys=True) + "\n"
    made = folder / f"random-{role}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    if made.is_dir():
        return made
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as parent:
        new = Path(parent) / made.name
        new.mkdir()
        for pattern in TOKENIZER_FILES:
            for file in () if tokenizer is None else tokenizer.glob(pattern):
                shutil.copy(file, new / file.name)
        (new / "config.json").write_text(text, encoding="utf-8")
        with suppress(OSError):
            new.rename(made)
    return made
