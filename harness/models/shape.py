"""The sizes of public models, by name: the fields of their published config.json, with the address they come from.

Paths and JSON only; which of them this version can run is known where a model is built.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from harness.config.models import Layers
from harness.models.model_types import takes_general_path

SHAPES = Path(__file__).parent / "shapes"
"""One JSON file for each shape: `source`, and `config` as in a config.json."""


class Shape(NamedTuple):
    """The architecture of one public model."""

    name: str
    source: str
    """Where its config.json is published."""
    config: dict[str, Any]
    """Those of its fields that decide what is computed, which tokens end a sequence, and the published dtype."""


def shape_names() -> tuple[str, ...]:
    """The names of all shapes, sorted."""
    return tuple(sorted(path.stem for path in SHAPES.glob("*.json")))


def told_of_shape(fields: Mapping[str, Any], layers: Layers) -> tuple[str, ...]:
    """What a reader must know of a model of a shape: whose code computes its layers, where it is not ours."""
    model_type = fields["model_type"]
    if not takes_general_path(fields, layers):
        return ()
    # it imports the tables of transformers
    from harness.models.general.known_types import architecture_of, what_it_means

    return (what_it_means(str(architecture_of(model_type)), model_type),)


def read_shape(name: str) -> Shape:
    """A shape by name. Raises ValueError when there is none of that name."""
    if name not in shape_names():
        raise ValueError(f"shape: expected one of {', '.join(shape_names())}, found {name!r}")
    content = json.loads((SHAPES / f"{name}.json").read_text(encoding="utf-8"))
    return Shape(name, content["source"], content["config"])
