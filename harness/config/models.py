"""The typed settings of the models that a cell runs: the target, the drafter, and where their weights come from.

Knows neither torch nor Hydra.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import PurePath
from typing import NamedTuple

from harness.config.imported import OrImported, named


class DrafterKind(Enum):
    """Who proposes; harness.drafters.registry says how."""

    none = "none"
    eagle = "eagle"
    eagle3 = "eagle3"
    mtp = "mtp"
    peagle = "peagle"
    dflash = "dflash"
    draft_model = "draft_model"
    ngram = "ngram"
    suffix = "suffix"


@dataclass(frozen=True)
class DrafterTraits:
    """What is true of a kind of drafter, whatever its settings."""

    has_model: bool = False
    """Whether it is a network that the harness loads."""
    is_one_hot: bool = False
    """Whether it has no distribution to draw from."""
    drafts_trees: bool = False
    """Whether it can propose several tokens for a position."""
    in_target: bool = False
    """Whether it lies in the target's own folder and has the target's sizes."""
    in_zoo: bool = True
    """Whether the built-in target has one."""
    settings: tuple[str, ...] = ()
    """Settings of the section drafter that only such kinds use."""
    name: str = "{kind}"
    """What tables call it, by its settings."""


DRAFTERS = {
    DrafterKind.none: DrafterTraits(is_one_hot=True),
    DrafterKind.eagle: DrafterTraits(has_model=True, drafts_trees=True),
    DrafterKind.eagle3: DrafterTraits(has_model=True, drafts_trees=True, settings=("aux_layers",)),
    DrafterKind.mtp: DrafterTraits(has_model=True, drafts_trees=True, in_target=True),
    DrafterKind.peagle: DrafterTraits(has_model=True, settings=("aux_layers",)),
    DrafterKind.dflash: DrafterTraits(has_model=True, in_zoo=False, settings=("aux_layers", "anchor")),
    DrafterKind.draft_model: DrafterTraits(has_model=True, drafts_trees=True, settings=("shape",)),
    DrafterKind.ngram: DrafterTraits(
        is_one_hot=True,
        drafts_trees=True,
        settings=("ngram_max", "ngram_min", "ngram_match"),
        name="{kind} ({ngram_min} to {ngram_max})",
    ),
    DrafterKind.suffix: DrafterTraits(
        is_one_hot=True,
        settings=("suffix_min", "suffix_factor", "suffix_history"),
        name="{kind} (from {suffix_min}, x {suffix_factor}, history {suffix_history})",
    ),
}
_OF_ONES_OWN = DrafterTraits()


def drafter_traits(kind: str) -> DrafterTraits:
    """What is true of a kind, by its value; of one that is not ours, that it brings everything itself."""
    return DRAFTERS[DrafterKind(kind)] if kind in DrafterKind.__members__ else _OF_ONES_OWN


class Weights(Enum):
    """Where a model's weights come from."""

    checkpoint = "checkpoint"
    random = "random"


def require(condition: bool, name: str, expected: str, found: object) -> None:
    """Raise ValueError unless `condition` holds, with the setting's name, what was expected and what was found."""
    if not condition:
        raise ValueError(f"{name}: expected {expected}, found {found}")


_SNAPSHOT = re.compile(r"models--([^/]+)/snapshots/[^/]+/?$")


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


class HeadChoices(NamedTuple):
    """What the user says of a head's file, in place of what the file says."""

    aux_layers: tuple[int, ...] = ()
    """Layers of the target whose entering states it reads; () for those of the file."""
    anchor: Anchor | None = None


AS_FILED = HeadChoices()
"""Nothing but what files say."""


class NgramMatch(Enum):
    """Which of several occurrences of a suffix is continued."""

    latest = "latest"
    earliest = "earliest"


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
        _require_shape_alone("target", self.shape, self.path, self.weights)
        source = self.path or self.shape
        if source is not None and self.name == "zoo":
            self.name = checkpoint_name(source)

    @property
    def is_built_in(self) -> bool:
        """Whether it is the zoo's model, with its own weights or random ones."""
        return self.path is None and self.shape is None


@dataclass
class DrafterConfig:
    """The proposer."""

    kind: OrImported[DrafterKind] = DrafterKind.none
    """Who proposes; none is the autoregressive baseline, PACKAGE.MODULE:NAME builds one of your own."""
    path: str | None = None
    """Local folder or Hugging Face id; null is the one built for the zoo's target (mtp: the target's own folder)."""
    preferred: str | None = None
    """Hugging Face id of the drafter for target.preferred; both are taken, or neither."""
    revision: str | None = None
    """Revision of a Hugging Face id."""
    weights: Weights = Weights.checkpoint
    """The checkpoint's, or random ones; without a path, of the sizes that the public heads have for such a target."""
    shape: str | None = None
    """draft_model: sizes of a public model, by name, instead of a path; needs weights=random."""
    accept_unknown: list[str] = field(default_factory=list)
    """The same of the drafter's files: fields and tensors that are left out because you vouch for them."""
    aux_layers: list[int] = field(default_factory=list)
    """Layers of the target, counted from 0, whose entering states the head reads; empty: those that its file says. The
    state after the last layer is that entering layer n of n."""
    anchor: Anchor | None = None
    """dflash: what the first place of a block predicts: mask is nothing, first is the first draft token; null: what its
    file says."""
    ngram_max: int = 4
    """ngram: longest suffix that is looked up in the sequence so far."""
    ngram_min: int = 2
    """ngram: shortest suffix that is looked up."""
    ngram_match: NgramMatch = NgramMatch.latest
    """ngram: which occurrence of the longest suffix counts: the latest, or, as in vLLM, the earliest."""
    suffix_min: int = 2
    """suffix: shortest suffix that is looked up in the sequence so far."""
    suffix_factor: float = 1.0
    """suffix: draft tokens proposed for each token of the suffix that was found."""
    suffix_history: int = 0
    """suffix: tokens of all requests of a block that are searched together; 0 searches each request's own alone."""

    def __post_init__(self) -> None:
        self.kind = named("drafter.kind", DrafterKind.__members__, self.kind)
        require(self.path != "", "drafter.path", "a folder, a Hugging Face id or null", "nothing")
        _require_shape_alone("drafter", self.shape, self.path, self.weights)
        layers = self.aux_layers
        different = len(set(layers)) == len(layers) and all(index >= 0 for index in layers)
        require(different, "drafter.aux_layers", "different layers, counted from 0", layers)
        require(
            1 <= self.ngram_min <= self.ngram_max, "drafter.ngram_min", "1 <= ngram_min <= ngram_max", self.ngram_min
        )
        require(self.suffix_min >= 1, "drafter.suffix_min", "at least 1", self.suffix_min)
        require(self.suffix_history >= 0, "drafter.suffix_history", "0 or more tokens", self.suffix_history)
        require(0 < self.suffix_factor < float("inf"), "drafter.suffix_factor", "a number above 0", self.suffix_factor)

    @property
    def traits(self) -> DrafterTraits:
        return drafter_traits(self.kind.value)

    @property
    def head_choices(self) -> HeadChoices:
        return HeadChoices(tuple(self.aux_layers), self.anchor)

    @property
    def has_model(self) -> bool:
        """Whether the drafter is a network that the harness loads."""
        return self.traits.has_model


def _require_shape_alone(section: str, shape: str | None, path: str | None, weights: Weights) -> None:
    if shape is not None:
        key = f"{section}.shape"
        require(path is None, key, f"a shape or {section}.path, not both", "both")
        found = f"{section}.weights={weights.value}"
        require(weights is Weights.random, key, f"{section}.weights=random beside it: a shape has no weights", found)
