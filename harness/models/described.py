"""The config.json of a run's models, as far as it lies on this machine. JSON and paths only."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from harness.config.drafter import DrafterConfig, DrafterKind
from harness.config.models import TargetConfig, Weights
from harness.models.checkpoint import without_nulls
from harness.models.shape import SHAPES, read_shape
from harness.models.zoo import zoo_path
from harness.records.strict_json import parse_json

CONFIG = "config.json"


class Described(NamedTuple):
    """The fields of one model and where they come from."""

    fields: dict[str, Any]
    source: Path

    @property
    def vocab_size(self) -> object:
        """Of the layer, where a file tells it apart from the head; None where the file does not say."""
        return self._sizes.get("vocab_size")

    @property
    def num_positions(self) -> int:
        """max_position_embeddings, found likewise; 0 where the file names none."""
        found = self._sizes.get("max_position_embeddings")
        return found if type(found) is int and found > 0 else 0

    @property
    def _sizes(self) -> dict[str, Any]:
        layer = self.fields.get("transformer_layer_config")
        return layer if isinstance(layer, dict) else self.fields


def described_target(target: TargetConfig) -> Described | None:
    """The target's; None where it cannot be read, which the loader says."""
    if target.shape is not None:
        return _of_shape(target.shape)
    return _of_zoo("target", target.weights) if target.path is None else described_folder(Path(target.path))


def described_drafter(drafter: DrafterConfig) -> Described | None:
    """The drafter's; None also for one without a network, or that takes its sizes from the target."""
    if not drafter.has_model:
        return None
    if drafter.shape is not None:
        return _of_shape(drafter.shape)
    if drafter.path is not None:
        return described_folder(Path(drafter.path))
    follows = drafter.weights is Weights.random and drafter.kind is not DrafterKind.draft_model
    if follows or drafter.traits.in_target:
        return None
    return _of_zoo(drafter.kind.value, drafter.weights)


def _of_zoo(kind: str, weights: Weights) -> Described | None:
    try:
        return described_folder(zoo_path(kind, with_weights=weights is Weights.checkpoint))
    except ValueError:
        # the loader says what is missing or broken
        return None


def _of_shape(name: str) -> Described:
    return Described(read_shape(name).config, SHAPES / f"{name}.json")


def described_folder(folder: Path) -> Described | None:
    """That of a checkpoint folder; None where it cannot be read."""
    source = folder.expanduser() / CONFIG
    try:
        fields = parse_json(source.read_bytes())
    except (OSError, ValueError):
        # the loader says what is missing or broken
        return None
    return Described(without_nulls(fields), source) if isinstance(fields, dict) else None
