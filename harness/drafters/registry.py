"""From the settings of a drafter to its network, and to the drafter made of it.

A drafter of your own is named PACKAGE.MODULE:NAME: a function of a `DrafterSetup` that returns a Drafter, or a class
made with one. `can_be_captured = True` on it promises that its drafts can be captured in CUDA graphs. One with settings
is a dataclass as those of this package, a harness.config.drafter.DrafterConfig with `build`: guides/drafter.md has a
whole one.

A drafter with a distribution draws each token by `draw` of harness.drafters.draft_logits.DraftLogits, which keeps the
logits, and returns that object's `draft`, whose `Draft.logits` are those kept. Logits written to its `place` of the
step, just before, need not be copied. Its `num_bytes` are the drafter's logit_cache_bytes. Such a drafter is asked for
by drafting.sampling=sampled: `auto` is greedy for a drafter of your own, and greedy needs no DraftLogits. What a
drafter of your own may not return is refused with the round and its request (harness.drafters.own_drafter).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from harness.config.cell import CellConfig
from harness.config.drafter import KEY, DrafterConfig, DrafterKind, NetworkConfig
from harness.config.drafting import CacheDtype
from harness.config.imported import ImportPath
from harness.config.models import Weights
from harness.config.own_code import own_place
from harness.config.tree import DynamicTree
from harness.drafters.chain import DrafterShape
from harness.drafters.draft_logits import Caching
from harness.drafters.draft_tree import DraftTree
from harness.drafters.dynamic_tree import DynamicTreeShape
from harness.drafters.protocol import Drafter
from harness.drafters.tree_growth import TreeShape
from harness.models.accounting import Accepted
from harness.models.checkpoint import WITHOUT_WEIGHTS, checkpoint_folder
from harness.models.described import described_folder
from harness.models.head import Head
from harness.models.target import TargetModel
from harness.models.zoo import is_zoo_target, zoo_path
from kernels.contract import DraftSampling


@dataclass(frozen=True)
class LoadedHead:
    """A drafting network and where it came from."""

    head: Head | TargetModel
    """A head that leans on the target's states, or a language model of its own."""
    folder: Path | None
    """Of its checkpoint; None for random weights."""
    random_fingerprint: str | None = None
    """Identifies random weights; None for those of a checkpoint."""
    is_of_target: bool = False
    """Whether its weights are the target's own, loaded and made ready with it."""

    @cached_property
    def num_positions(self) -> int:
        """Positions that its file names; 0 where it names none, and for random weights."""
        described = None if self.folder is None else described_folder(self.folder)
        return 0 if described is None else described.num_positions

    @property
    def num_draft_ids(self) -> int:
        """Tokens that it drafts, the columns of its draft rows."""
        shared = self.head.shared_tokens if isinstance(self.head, TargetModel) else None
        return self.head.vocab_size if shared is None else len(shared.target_ids)

    @property
    def module(self) -> nn.Module:
        """The network with its weights."""
        return self.head.causal_lm if isinstance(self.head, TargetModel) else self.head


class DrafterSetup(NamedTuple):
    """What a drafter is made of."""

    config: DrafterConfig
    """The settings of the section drafter."""
    target: TargetModel
    """Its `device` and `dtype` are those of the tensors to make; on the meta device they must take no memory."""
    loaded: LoadedHead | None
    """The drafting network; None for kinds that have none."""
    draft_sampling: DraftSampling
    """How drafts are drawn; greedy drafts are one-hot, `Draft.logits` is None."""
    shape: DrafterShape
    caching: Caching
    tree: TreeShape | None = None
    """The shape of its drafts; None for chains, and always for a drafter of the user's own."""

    @property
    def head(self) -> Head:
        """The drafting network, of a kind that leans on the target's states."""
        assert self.loaded is not None and not isinstance(self.loaded.head, TargetModel)
        return self.loaded.head

    @property
    def model(self) -> TargetModel:
        """The drafting network, of a kind that is a language model."""
        assert self.loaded is not None and isinstance(self.loaded.head, TargetModel)
        return self.loaded.head


def load_head(config: DrafterConfig, target: TargetModel) -> LoadedHead | None:
    """Load or draw the network of a drafter for this target, or make it of the target; None for the kinds without one.

    For a target on the meta device it is on it too.

    Raises:
        ValueError: the files do not fit the kind or the target.
    """
    if config.traits.is_of_target:
        return LoadedHead(config.of_target(target), None, is_of_target=True)
    if not isinstance(config, NetworkConfig):
        return None
    if target.head_obstacle is not None and config.kind is not DrafterKind.draft_model:
        raise ValueError(
            f"drafter={config.kind.value}: expected a target whose states a head can read, found {target.name}: "
            f"{target.head_obstacle}; use drafter=draft_model, ngram or suffix"
        )
    if config.weights is Weights.random:
        head = config.random(target)
        return LoadedHead(head, None, head.random_fingerprint)
    if config.path is not None:
        folder = checkpoint_folder(config.path, config.revision)
    elif not config.traits.in_target:
        folder = zoo_path(config.kind.value)
    elif target.path is not None:
        folder = target.path
    else:
        raise ValueError(f"target {target.name}: expected a folder to read its MTP layer from, found none")
    return LoadedHead(config.load(folder, target), folder)


def accepted_of(config: DrafterConfig) -> Accepted:
    """What the user vouches for of a drafter's files."""
    return Accepted("drafter", tuple(config.accept_unknown))


def build_drafter(cell: CellConfig, target: TargetModel, loaded: LoadedHead | None, shape: DrafterShape) -> Drafter:
    """A drafter with the caches that `shape` asks for.

    Raises:
        ValueError: a drafter of the user's own fails while it is made, or lacks a part of the protocol.
    """
    tree = tree_of(cell, target.device)
    setup = DrafterSetup(cell.drafter, target, loaded, cell.draft_sampling, shape, caching_of(cell), tree)
    is_own = isinstance(cell.drafter.kind, ImportPath)
    return _checked(cell.drafter, setup) if is_own else cell.drafter.build(setup)


def tree_of(cell: CellConfig, device: torch.device) -> TreeShape | None:
    """The shape of a cell's trees; None for chains."""
    shape = cell.drafting.tree_shape if cell.drafts_tree else None
    if isinstance(shape, DynamicTree):
        return DynamicTreeShape(shape)
    return None if shape is None else DraftTree(shape, cell.siblings, device)


def check_capture(config: DrafterConfig, graphs: bool, device: torch.device) -> None:
    """Raise ValueError where steps are captured as CUDA graphs and the drafter does not promise to allow it."""
    if graphs and device.type == "cuda" and not config.can_be_captured:
        raise ValueError(
            f"backend.graphs: expected false with a drafter that CUDA graphs cannot hold, found true with "
            f"{KEY}={config.kind.value}; set backend.graphs=false, or can_be_captured = True on the drafter if its "
            "propose and extend neither wait for the device nor depend on values"
        )


def caching_of(cell: CellConfig) -> Caching:
    """How the cell keeps its draft logits."""
    choice = cell.drafting.cache_dtype
    dtype = None if choice is CacheDtype.auto else getattr(torch, choice.value)
    return Caching(dtype, cell.draws_unrounded, cell.drafting.min_confidence)


def _checked(config: DrafterConfig, setup: DrafterSetup) -> Drafter:
    """A drafter of the user's own, checked against the protocol."""
    kind = config.kind.value
    try:
        drafter = config.build(setup)
    except Exception as error:
        raise ValueError(
            f"{KEY}: {kind} failed while it was made: {type(error).__name__}: {error}{own_place(error)}"
        ) from error
    missing = [name for name in _PARTS if not hasattr(drafter, name)]
    if missing:
        raise ValueError(
            f"{KEY}: expected {kind} to give a harness.drafters.protocol.Drafter, found a {type(drafter).__name__} "
            f"without {', '.join(missing)}; StatelessDrafter there has all but propose"
        )
    return drafter


def sizes_of(config: DrafterConfig, target: TargetModel) -> Path | None:
    """The folder whose sizes a random head has: one that is named, or the zoo's for the zoo's own target.

    None leaves those that public heads have for such a target.
    """
    if config.path is not None:
        return checkpoint_folder(config.path, config.revision, WITHOUT_WEIGHTS)
    if not (config.traits.in_zoo and is_zoo_target(target.path)):
        return None
    return zoo_path(config.kind.value, with_weights=False)


_PARTS = [name for name in (*vars(Drafter), *Drafter.__annotations__) if not name.startswith("_")]
