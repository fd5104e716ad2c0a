"""Every kind of drafter: its network, and the drafter made of it.

A drafter of your own is named PACKAGE.MODULE:NAME: a function of a `DrafterSetup` that returns a Drafter, or a class
made with one. `can_be_captured = True` on it promises that its drafts can be captured in CUDA graphs.

    import torch

    from harness.drafters.protocol import Batch, StatelessDrafter
    from harness.drafters.registry import DrafterSetup
    from kernels.contract import Draft


    class LastToken(StatelessDrafter):
        def __init__(self, setup: DrafterSetup) -> None: ...

        def propose(self, batch: Batch) -> Draft:
            last = batch.token_ids.gather(1, batch.lengths.unsqueeze(1) - 1)
            token_ids = last.expand(-1, batch.num_speculative_tokens).contiguous()
            return Draft(token_ids, torch.full_like(batch.lengths, batch.num_speculative_tokens))

A drafter with a distribution draws each token by `draw` of harness.drafters.draft_logits.DraftLogits, which keeps the
logits, and returns that object's `draft`, whose `Draft.logits` are those kept. Logits written to its `place` of the
step, just before, need not be copied. Its `num_bytes` are the drafter's logit_cache_bytes. Such a drafter is asked for
by drafting.sampling=sampled: `auto` is greedy for a drafter of your own, and greedy needs no DraftLogits. What a
drafter of your own may not return is refused with the round and its request (harness.drafters.own_drafter).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from harness.config.cell import CellConfig
from harness.config.drafting import CacheDtype
from harness.config.imported import ImportPath
from harness.config.models import DrafterConfig, DrafterKind, HeadChoices, NgramMatch, Weights
from harness.config.own_code import own_place
from harness.config.tree import DynamicTree
from harness.drafters.block import BlockDrafter
from harness.drafters.chain import ChainDrafter, DrafterShape
from harness.drafters.draft_logits import Caching
from harness.drafters.draft_model import DraftModelDrafter
from harness.drafters.draft_tree import DraftTree
from harness.drafters.dynamic_tree import DynamicTreeShape
from harness.drafters.ngram import NgramDrafter, NgramTreeDrafter
from harness.drafters.none import NoDrafter
from harness.drafters.parallel import ParallelDrafter
from harness.drafters.protocol import Drafter
from harness.drafters.suffix import SuffixDrafter
from harness.drafters.tree import TreeHeadDrafter, TreeModelDrafter
from harness.drafters.tree_growth import TreeShape
from harness.models.accounting import Accepted
from harness.models.checkpoint import WITHOUT_WEIGHTS, checkpoint_folder
from harness.models.described import described_folder
from harness.models.dflash import DFlashHead, load_dflash
from harness.models.draft_model import load_draft_model, random_draft_model
from harness.models.eagle import load_eagle
from harness.models.eagle3 import load_eagle3
from harness.models.head import Head
from harness.models.mtp import load_mtp
from harness.models.peagle import PEagleHead, load_peagle
from harness.models.random_head import random_dflash, random_eagle, random_eagle3, random_mtp, random_peagle
from harness.models.random_target import architecture
from harness.models.target import TargetModel
from harness.models.zoo import ZOO, zoo_path
from kernels.contract import DraftSampling

KEY = "drafter.kind"


@dataclass(frozen=True)
class LoadedHead:
    """A drafting network and where it came from."""

    head: Head | TargetModel
    """A head that leans on the target's states, or a language model of its own."""
    folder: Path | None
    """Of its checkpoint; None for random weights."""
    random_fingerprint: str | None = None
    """Identifies random weights; None for those of a checkpoint."""

    @cached_property
    def num_positions(self) -> int:
        """Positions that its file names; 0 where it names none, and for random weights."""
        described = None if self.folder is None else described_folder(self.folder)
        return 0 if described is None else described.num_positions

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


@dataclass(frozen=True)
class DrafterSpec:
    """One kind of drafter; harness.config.models.DRAFTERS says what settings need to know of it."""

    build: Callable[[DrafterSetup], Drafter]
    load: Callable[..., Head | TargetModel] | None = None
    """The network of a checkpoint folder, for a target (both by place), with what is `accepted` of its files and, of
    kinds that have such settings, `choices`; None for kinds without one."""
    random: Callable[[DrafterConfig, TargetModel], Head | TargetModel] | None = None
    """The same with random weights, of the sizes that the settings name."""
    can_be_captured: bool = True
    """Whether its `propose` and `extend` can be captured in a CUDA graph."""


def load_head(config: DrafterConfig, target: TargetModel) -> LoadedHead | None:
    """Load or draw the network of a drafter for this target; None for the kinds that have none.

    For a target on the meta device it is on it too.

    Raises:
        ValueError: the files do not fit the kind or the target.
    """
    spec = drafter_spec(config.kind)
    if spec.load is None or spec.random is None:
        return None
    if config.weights is Weights.random:
        head = spec.random(config, target)
        return LoadedHead(head, None, head.random_fingerprint)
    if config.path is not None:
        folder = checkpoint_folder(config.path, config.revision)
    elif not config.traits.in_target:
        folder = zoo_path(config.kind.value)
    elif target.path is not None:
        folder = target.path
    else:
        raise ValueError(f"target {target.name}: expected a folder to read its MTP layer from, found none")
    return LoadedHead(spec.load(folder, target, accepted=accepted_of(config), **_chosen(config)), folder)


def _chosen(config: DrafterConfig) -> dict[str, HeadChoices]:
    """What the user says of a head's file, for kinds that have such settings."""
    return {"choices": config.head_choices} if "aux_layers" in config.traits.settings else {}


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
    build = drafter_spec(cell.drafter.kind).build
    return _built(cell.drafter.kind, build, setup) if isinstance(cell.drafter.kind, ImportPath) else build(setup)


def tree_of(cell: CellConfig, device: torch.device) -> TreeShape | None:
    """The shape of a cell's trees; None for chains."""
    shape = cell.drafting.tree_shape if cell.drafts_tree else None
    if isinstance(shape, DynamicTree):
        return DynamicTreeShape(shape)
    return None if shape is None else DraftTree(shape, cell.siblings, device)


def drafter_spec(kind: DrafterKind | ImportPath) -> DrafterSpec:
    """The specification of a kind.

    Raises:
        ValueError: PACKAGE.MODULE:NAME cannot be imported, or is no function.
    """
    if not isinstance(kind, ImportPath):
        return _SPECS[kind]
    build = kind.load(KEY)
    if not callable(build):
        raise ValueError(
            f"{KEY}: expected a function of a DrafterSetup, or a class made with one, found {kind} to be a "
            f"{type(build).__name__}"
        )
    return DrafterSpec(build, can_be_captured=bool(getattr(build, "can_be_captured", False)))


def check_capture(config: DrafterConfig, graphs: bool, device: torch.device) -> None:
    """Raise ValueError where steps are captured as CUDA graphs and the drafter does not promise to allow it."""
    if graphs and device.type == "cuda" and not drafter_spec(config.kind).can_be_captured:
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


def _built(kind: ImportPath, build: Callable[[DrafterSetup], Drafter], setup: DrafterSetup) -> Drafter:
    """A drafter of the user's own, checked against the protocol."""
    try:
        drafter = build(setup)
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


def _chain(setup: DrafterSetup) -> Drafter:
    assert setup.loaded is not None and not isinstance(setup.loaded.head, TargetModel)
    head, sampling, shape = setup.loaded.head, setup.draft_sampling, setup.shape
    if setup.tree is not None:
        return TreeHeadDrafter(head, sampling, shape, setup.tree, setup.caching)
    return ChainDrafter(head, sampling, shape, setup.caching)


def _parallel(setup: DrafterSetup) -> Drafter:
    assert setup.loaded is not None and setup.tree is None
    head, given = setup.loaded.head, (setup.draft_sampling, setup.shape, setup.caching)
    if isinstance(head, DFlashHead):
        return BlockDrafter(head, *given)
    assert isinstance(head, PEagleHead)
    return ParallelDrafter(head, *given)


def _with_draft_model(setup: DrafterSetup) -> Drafter:
    assert setup.loaded is not None and isinstance(setup.loaded.head, TargetModel)
    model, sampling, shape = setup.loaded.head, setup.draft_sampling, setup.shape
    if setup.tree is not None:
        return TreeModelDrafter(model, sampling, shape, setup.tree, setup.caching)
    return DraftModelDrafter(model, sampling, shape, setup.caching)


def _ngram(setup: DrafterSetup) -> Drafter:
    config = setup.config
    earliest = config.ngram_match is NgramMatch.earliest
    if setup.tree is None:
        return NgramDrafter(config.ngram_max, config.ngram_min, earliest)
    assert isinstance(setup.tree, DynamicTreeShape), "its trees are those that it finds"
    return NgramTreeDrafter(config.ngram_max, config.ngram_min, setup.tree, earliest)


def _sizes(config: DrafterConfig, target: TargetModel) -> Path | None:
    """The folder whose sizes a random head has: one that is named, or the zoo's for the zoo's own target.

    None leaves those that public heads have for such a target.
    """
    if config.path is not None:
        return checkpoint_folder(config.path, config.revision, WITHOUT_WEIGHTS)
    if not (config.traits.in_zoo and target.path == ZOO / "target"):
        return None
    return zoo_path(config.kind.value, with_weights=False)


def _random(make: Callable[..., Head]) -> Callable[[DrafterConfig, TargetModel], Head]:
    return lambda config, target: make(target, _sizes(config, target), accepted_of(config), **_chosen(config))


def _random_draft_model(config: DrafterConfig, target: TargetModel) -> TargetModel:
    path = zoo_path("draft_model", with_weights=False) if config.path is None and config.shape is None else config.path
    given = architecture(path, config.shape, revision=config.revision, accepted=accepted_of(config))
    return random_draft_model(given, config.shape or given.source.parent.name, target)


_PARTS = [name for name in (*vars(Drafter), *Drafter.__annotations__) if not name.startswith("_")]
_SPECS = {
    DrafterKind.none: DrafterSpec(lambda setup: NoDrafter()),
    DrafterKind.eagle: DrafterSpec(_chain, load_eagle, _random(random_eagle)),
    DrafterKind.eagle3: DrafterSpec(_chain, load_eagle3, _random(random_eagle3)),
    DrafterKind.mtp: DrafterSpec(_chain, load_mtp, lambda config, target: random_mtp(target)),
    DrafterKind.peagle: DrafterSpec(_parallel, load_peagle, _random(random_peagle)),
    DrafterKind.dflash: DrafterSpec(_parallel, load_dflash, _random(random_dflash)),
    DrafterKind.draft_model: DrafterSpec(_with_draft_model, load_draft_model, _random_draft_model),
    DrafterKind.ngram: DrafterSpec(_ngram),
    DrafterKind.suffix: DrafterSpec(
        lambda setup: SuffixDrafter(setup.config.suffix_min, setup.config.suffix_factor, setup.config.suffix_history),
        can_be_captured=False,
    ),
}
