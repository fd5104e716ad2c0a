"""The section `drafter`: who proposes. The settings of each drafter stand in its module of harness.drafters.

Knows the names of the drafters, and imports a module where its settings are asked for: without torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from harness.config.imported import ImportPath
from harness.config.models import AS_FILED, HeadChoices, Weights, require
from harness.config.union import Member, member_of, union_of

if TYPE_CHECKING:
    from pathlib import Path

    from harness.config.cell import CellConfig
    from harness.drafters.protocol import Drafter
    from harness.drafters.registry import DrafterSetup
    from harness.models.head import Head
    from harness.models.target import TargetModel

KEY = "drafter.kind"


class DrafterKind(Member):
    """A drafter of ours: its name, with PACKAGE.MODULE:CLASS of its settings."""

    none = "none", "harness.drafters.none:NoDrafts"
    eagle = "eagle", "harness.drafters.eagle:Eagle"
    eagle3 = "eagle3", "harness.drafters.eagle3:Eagle3"
    mtp = "mtp", "harness.drafters.mtp:Mtp"
    peagle = "peagle", "harness.drafters.peagle:PEagle"
    dflash = "dflash", "harness.drafters.dflash:DFlash"
    dspark = "dspark", "harness.drafters.dspark:DSpark"
    dflash2 = "dflash2", "harness.drafters.dflash2:DFlash2"
    medusa = "medusa", "harness.drafters.medusa:Medusa"
    draft_model = "draft_model", "harness.drafters.draft_model:DraftModel"
    ngram = "ngram", "harness.drafters.ngram:Ngram"
    suffix = "suffix", "harness.drafters.suffix:Suffix"
    lookahead = "lookahead", "harness.drafters.lookahead:Lookahead"
    self_speculation = "self_speculation", "harness.drafters.self_speculation:SelfSpeculation"


@dataclass(frozen=True)
class DrafterTraits:
    """What is true of a kind of drafter, whatever its settings."""

    has_model: bool = False
    """Whether it is a network that the harness loads."""
    is_of_target: bool = False
    """Whether it is a network made of the target's own weights, so that nothing else is loaded."""
    is_one_hot: bool = False
    """Whether it has no distribution to draw from."""
    drafts_trees: bool = False
    """Whether it can propose several tokens for a position."""
    in_target: bool = False
    """Whether it lies in the target's own folder and has the target's sizes."""
    in_zoo: bool = True
    """Whether the built-in target has one."""
    built_in_for: tuple[str, ...] = ()
    """Hugging Face ids of other targets for which one is built in (harness.models.zoo.head_path)."""
    name: str = "{kind}"
    """What tables call it, by its settings."""

    @property
    def has_network(self) -> bool:
        """Whether it is a network of ours, which drafts by rows of logits."""
        return self.has_model or self.is_of_target


@dataclass(frozen=True)
class DrafterConfig:
    """The settings of a drafter, which are the fields of its dataclass, have defaults, and a docstring each; and what
    the harness must know of it.

    A drafter of the user's own is the same, outside of the package: `drafter=PACKAGE.MODULE:NAME`.
    """

    traits: ClassVar[DrafterTraits] = DrafterTraits()

    @property
    def kind(self) -> DrafterKind | ImportPath:
        """Its name."""
        return member_of(self, DrafterKind)

    @property
    def has_model(self) -> bool:
        """Whether the drafter is a network that the harness loads."""
        return self.traits.has_model

    @property
    def can_be_captured(self) -> bool:
        """Whether its `propose` and `extend` can be captured in a CUDA graph."""
        return True

    def refusal(self, cell: CellConfig) -> str | None:
        """Why it cannot draft in a cell, and what to do instead; None if it can."""
        return None

    def misfit(self, num_layers: int, target: str) -> str | None:
        """Why it does not fit a target with so many layers, of that name; None if it does."""
        return None

    def build(self, setup: DrafterSetup) -> Drafter:
        """The drafter itself."""
        raise NotImplementedError

    def of_target(self, target: TargetModel) -> TargetModel:
        """The network that a kind with `is_of_target` makes of its target.

        Raises:
            ValueError: the target does not allow it.
        """
        raise NotImplementedError

    @property
    def network_key(self) -> tuple[object, ...]:
        """What its network follows from beside files and `head_choices`."""
        return ()

    def __reduce__(self) -> Any:
        """Another process imports one of the user's own by its path."""
        name, settings = DRAFTER.parts(self)
        return partial(drafter_of, name, **settings), ()

    # What a drafter without a network says of its files: nothing.

    @property
    def path(self) -> str | None:
        return None

    @property
    def preferred(self) -> str | None:
        return None

    @property
    def revision(self) -> str | None:
        return None

    @property
    def weights(self) -> Weights:
        return Weights.checkpoint

    @property
    def accept_unknown(self) -> tuple[str, ...]:
        return ()

    @property
    def shape(self) -> str | None:
        return None

    @property
    def head_choices(self) -> HeadChoices:
        return AS_FILED


@dataclass(frozen=True)
class NetworkConfig(DrafterConfig):
    """The settings of a drafter that is a network."""

    path: str | None = None
    """Local folder or Hugging Face id; null is the one built for the target (mtp: the target's own folder)."""
    preferred: str | None = None
    """Hugging Face id of the drafter for target.preferred; both are taken, or neither."""
    revision: str | None = None
    """Revision of a Hugging Face id."""
    weights: Weights = Weights.checkpoint
    """The checkpoint's, or random ones; without a path, of the sizes that the public heads have for such a target."""
    accept_unknown: tuple[str, ...] = ()
    """Fields and tensors of its files that are left out because you vouch for them, as in target.accept_unknown."""

    def __post_init__(self) -> None:
        require(self.path != "", "drafter.path", "a folder, a Hugging Face id or null", "nothing")

    def refusal(self, cell: CellConfig) -> str | None:
        lacks_weights = self.weights is Weights.checkpoint and self.path is None
        target, name = cell.target, self.kind.value
        if lacks_weights and not target.is_built_in and not self.traits.in_target:
            having = " and ".join(["the built-in target", *self.traits.built_in_for][not self.traits.in_zoo :])
            return (
                f"drafter={name} for target {target.name} needs drafter.path, or drafter.weights=random; "
                f"{f'only {having} may do without' if having else 'none is built in'}"
            )
        if lacks_weights and not self.traits.in_zoo:
            return f"drafter={name} needs drafter.path, or drafter.weights=random: none is built in"
        if lacks_weights and target.shape is not None and self.traits.in_target:
            return (
                f"drafter={name} is read from the target's own folder, and target.shape={target.shape} has none; use "
                "drafter.weights=random, or drafter.path"
            )
        return None

    def load(self, folder: Path, target: TargetModel) -> Head | TargetModel:
        """The network of a checkpoint folder, for a target.

        Raises:
            ValueError: the files do not fit the kind or the target.
        """
        raise NotImplementedError

    def random(self, target: TargetModel) -> Head | TargetModel:
        """The same with random weights, of the sizes that the settings name."""
        raise NotImplementedError


@dataclass(frozen=True)
class BuiltByOwn(DrafterConfig):
    """A drafter of the user's own without settings: a function of a DrafterSetup, or a class made with one."""

    builder: ImportPath

    def __reduce__(self) -> Any:
        """Nothing is imported before it is built."""
        return BuiltByOwn, (self.builder,)

    @property
    def kind(self) -> DrafterKind | ImportPath:
        return self.builder

    @property
    def can_be_captured(self) -> bool:
        return bool(getattr(self.builder.load(KEY), "can_be_captured", False))

    def build(self, setup: DrafterSetup) -> Drafter:
        found: Drafter = self.builder.load(KEY)(setup)
        return found


def drafter_of(kind: DrafterKind | str, **settings: Any) -> DrafterConfig:
    """A drafter with its settings; those that are not given have their defaults.

    Args:
        kind: built-in, or PACKAGE.MODULE:NAME.
        settings: by name.

    Raises:
        ValueError: there is no such drafter, or a setting is out of range.
        TypeError: it has no such setting.
    """
    found: DrafterConfig = DRAFTER.build(kind.value if isinstance(kind, DrafterKind) else kind, settings)
    return found


def drafter_traits(kind: str) -> DrafterTraits:
    """What is true of a kind, by its name; of one that is not ours, that it brings everything itself."""
    return DrafterKind(kind).settings.traits if kind in DrafterKind.__members__ else DrafterTraits()


def tree_drafters() -> tuple[str, ...]:
    """The names of the drafters of ours that propose several tokens for a position."""
    return tuple(kind.value for kind in DrafterKind if kind.settings.traits.drafts_trees)


DRAFTER = union_of(
    DrafterConfig,
    DrafterKind.paths(),
    own=(BuiltByOwn, "a function of a DrafterSetup, or a class made with one"),
    section="drafter",
    tag="kind",
    default=DrafterKind.none.value,
    doc="The proposer.",
    tag_doc="Who proposes; none is the autoregressive baseline, PACKAGE.MODULE:NAME builds one of your own.",
)
