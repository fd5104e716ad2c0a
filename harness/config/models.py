"""The typed settings of the target, and what settings of any model are made of.

Knows neither torch nor Hydra.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import PurePath
from typing import Any, NamedTuple


class Weights(Enum):
    """Where a model's weights come from."""

    checkpoint = "checkpoint"
    random = "random"


def require(condition: bool, name: str, expected: str, found: object) -> None:
    """Raise ValueError unless `condition` holds, with the setting's name, what was expected and what was found."""
    if not condition:
        raise ValueError(f"{name}: expected {expected}, found {found}")


_SNAPSHOT = re.compile(r"models--([^/]+)/snapshots/[^/]+/?$")

UNPACKED = "unpacked/"
"""What `shown_path` of a folder of packed weights begins with."""
_KEPT = re.compile(rf"^.*/(gguf/[^/]+-[0-9a-f]{{12}}|{UNPACKED}[0-9a-f]{{16}}/[^/]+|models--[^/]+/snapshots/[^/]+)/?$")
"""Folders that harness.models.kept_folders wrote into the user's cache, and snapshots of a Hub cache."""


def shown_path(path: str) -> str:
    """A path as tables have it, the same for the same model in another cache.

    Of a model in the user's cache, or in that of the Hub, it is the part that says what is in it.
    """
    found = _KEPT.match(path)
    return found[1] if found else path


def with_shown_paths(config: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a cell or record, sections as mappings, with the paths of its models as `shown_path` has them."""
    models = {name: config.get(name) for name in ("target", "drafter")}
    shown = {
        name: {**model, "path": shown_path(model["path"])}
        for name, model in models.items()
        if isinstance(model, Mapping) and model.get("path")
    }
    return {**config, **shown}


def checkpoint_name(path: str) -> str:
    """The last part of a path; of a snapshot in a Hub cache, whose last part is a commit, that of its repository."""
    return _repository(path).name


def checkpoint_names(paths: Collection[str]) -> dict[str, str]:
    """Path -> its name, with as many folders before it as tell it from the other paths; the path where none do."""
    found = {}
    for path in paths:
        parts = _repository(path).parts
        alike = [_common_tail(parts, _repository(other).parts) for other in paths if other != path]
        found[path] = "/".join(parts[-(max(alike, default=0) + 1) :])
    names = list(found.values())
    return {path: name if names.count(name) == 1 else path for path, name in found.items()}


def _repository(path: str) -> PurePath:
    """A path, or the repository of a snapshot in a Hub cache."""
    snapshot = _SNAPSHOT.search(path)
    return PurePath(snapshot[1].replace("--", "/", 1)) if snapshot else PurePath(path)


def _common_tail(first: Sequence[str], second: Sequence[str]) -> int:
    """How many last parts are the same."""
    pairs = zip(reversed(first), reversed(second), strict=False)
    return next((count for count, (one, other) in enumerate(pairs) if one != other), min(len(first), len(second)))


class Anchor(Enum):
    """What the first place of a block predicts, which holds the last token that is known."""

    mask = "mask"
    """Nothing: a block of n places gives n - 1 draft tokens, those of its masked places."""
    first = "first"
    """The first draft token: n places give n of them."""


class Confidence(Enum):
    """What says how sure a draft row is; it follows from the tokens before the draft token alone."""

    row = "row"
    """Its largest probability at temperature 1."""
    head = "head"
    """What the confidence head of the drafter predicts: that a draft token is accepted if those before it are."""
    survival = "survival"
    """The product of these predictions up to the row: that all drafts up to there are accepted."""


class HeadChoices(NamedTuple):
    """What the user says of a head's file, in place of what the file says."""

    aux_layers: tuple[int, ...] = ()
    """Layers of the target whose entering states it reads; () for those of the file."""
    anchor: Anchor | None = None
    confidence: Confidence = Confidence.row


AS_FILED = HeadChoices()
"""Nothing but what files say."""


class Layers(Enum):
    """Whose code computes the layers of a language model."""

    auto = "auto"
    """This project's where it has layers of that type, else transformers'."""
    own = "own"
    transformers = "transformers"


@dataclass
class TargetConfig:
    """The model whose distribution must be preserved."""

    name: str = "zoo"
    """Label of the target in tables; with a path or a shape, its last part unless given."""
    path: str | None = None
    """Local folder or Hugging Face id; null is the built-in zoo, or the shape."""
    preferred: str | None = None
    """Hugging Face id that takes the zoo's place where it already lies in the local Hub cache; never downloaded."""
    revision: str | None = None
    """Revision of a Hugging Face id."""
    trust_remote_code: bool = False
    """Run code that comes with the checkpoint."""
    weights: Weights = Weights.checkpoint
    """The checkpoint's, or random ones of the same sizes: for speed and memory at real shapes, never for text."""
    shape: str | None = None
    """Sizes of a public model, by name, instead of a path; needs weights=random."""
    layers: Layers = Layers.auto
    """Whose code computes its layers: own is this project's, of a few types; transformers is that of the Hugging Face
    library, of any; auto is own where there are such."""
    accept_unknown: list[str] = field(default_factory=list)
    """Fields of its files (eagle_config.NAME for nested ones) and tensors (NAME or PREFIX*) that this version does not
    compute, and that you vouch for: they are left out, and the report says so."""

    def __post_init__(self) -> None:
        require(self.path != "", "target.path", "a folder or a Hugging Face id (target.path=PATH)", "nothing")
        require_shape_alone("target", self.shape, self.path, self.weights)
        source = self.path or self.shape
        if source is not None and self.name == "zoo":
            self.name = checkpoint_name(source)

    @property
    def is_built_in(self) -> bool:
        """Whether it is the zoo's model, with its own weights or random ones."""
        return self.path is None and self.shape is None


def require_shape_alone(section: str, shape: str | None, path: str | None, weights: Weights) -> None:
    """Raise ValueError where a shape is not the only source of a model's sizes, or its weights are not random."""
    if shape is not None:
        key = f"{section}.shape"
        require(path is None, key, f"a shape or {section}.path, not both", "both")
        found = f"{section}.weights={weights.value}"
        require(weights is Weights.random, key, f"{section}.weights=random beside it: a shape has no weights", found)
