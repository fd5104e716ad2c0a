"""From a drafter's kind and files to its network, and from the network to a drafter of a given size."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from harness.drafters.chain import ChainDrafter, DrafterShape, Head
from harness.drafters.draft_logits import Caching
from harness.drafters.draft_model import DraftModelDrafter
from harness.drafters.ngram import NgramDrafter
from harness.drafters.none import NoDrafter
from harness.drafters.protocol import Drafter
from harness.models.checkpoint import WITHOUT_WEIGHTS, checkpoint_folder
from harness.models.eagle import EagleHead, load_eagle
from harness.models.eagle3 import Eagle3Head, load_eagle3
from harness.models.mtp import MtpHead, load_mtp
from harness.models.random_head import random_eagle, random_eagle3, random_mtp
from harness.models.random_target import architecture, random_model
from harness.models.target import TargetModel, load_target
from harness.models.vocabulary import check_draft_model, check_vocab_size
from harness.models.zoo import ZOO, zoo_path
from harness.settings.cell import CacheDtype, CellConfig, DrafterConfig, DrafterKind
from harness.settings.models import Weights


@dataclass(frozen=True)
class LoadedHead:
    """A drafting network and where it came from."""

    head: Head | TargetModel
    """A head that leans on the target's states, or a language model of its own."""
    folder: Path | None
    """Of its checkpoint; None for random weights."""
    random_fingerprint: str | None = None
    """Identifies random weights; None for those of a checkpoint."""

    @property
    def module(self) -> nn.Module:
        """The network with its weights."""
        module = self.head.causal_lm if isinstance(self.head, TargetModel) else self.head
        assert isinstance(module, nn.Module)
        return module


def load_head(config: DrafterConfig, target: TargetModel) -> LoadedHead | None:
    """Load or draw the network of a drafter for this target; None for the kinds that have none.

    For the outline of a target (harness.models.target) it is an outline too.

    Raises:
        ValueError: the files do not fit the kind or the target.
    """
    if not config.has_model:
        return None
    if config.weights is Weights.random:
        return draw_head(config, target)
    folder: Path | None
    if config.path is not None:
        folder = checkpoint_folder(config.path, config.revision)
    else:
        folder = target.path if config.kind is DrafterKind.mtp else zoo_path(config.kind.value)
    if folder is None:
        raise ValueError(f"target {target.name}: expected a folder to read its MTP layer from, found none")
    if config.kind is DrafterKind.eagle:
        return LoadedHead(load_eagle(folder, target), folder)
    if config.kind is DrafterKind.eagle3:
        return LoadedHead(load_eagle3(folder, target), folder)
    if config.kind is DrafterKind.mtp:
        return LoadedHead(load_mtp(folder, target), folder)
    model = load_target(folder, device=target.device, dtype=target.dtype, name=folder.name)
    check_draft_model(model, target)
    return LoadedHead(model, folder)


def draw_head(config: DrafterConfig, target: TargetModel) -> LoadedHead:
    """A network with random weights: of the sizes of a checkpoint or shape that is named, else of the zoo's for the
    zoo's own target, else of those that public heads have for such a target.

    Raises:
        ValueError: the sizes do not fit the target.
    """
    if config.kind is DrafterKind.mtp:
        return _random(random_mtp(target))
    if config.kind is DrafterKind.draft_model:
        return _random_draft_model(config, target)
    folder = None if config.path is None else checkpoint_folder(config.path, config.revision, WITHOUT_WEIGHTS)
    if folder is None and target.path == ZOO / "target":
        folder = zoo_path(config.kind.value)
    return _random(random_eagle(target, folder) if config.kind is DrafterKind.eagle else random_eagle3(target, folder))


def _random(head: EagleHead | Eagle3Head | MtpHead) -> LoadedHead:
    return LoadedHead(head, None, random_fingerprint=head.random_fingerprint)


def _random_draft_model(config: DrafterConfig, target: TargetModel) -> LoadedHead:
    path = zoo_path("draft_model") if config.path is None and config.shape is None else config.path
    given = architecture(path, config.shape, revision=config.revision)
    check_vocab_size(given.config.vocab_size, target, given.source)
    name = config.shape or given.source.parent.name
    model = random_model(
        given,
        "drafter",
        target.tokenizer,
        target.device,
        target.dtype,
        name,
        given.fields,
        tokenizer_stands_in=target.tokenizer_stands_in,
    )
    return LoadedHead(model, None, random_fingerprint=model.random_fingerprint)


def caching_of(cell: CellConfig) -> Caching:
    """How the cell keeps its draft logits."""
    choice = cell.drafting.cache_dtype
    dtype = None if choice is CacheDtype.auto else getattr(torch, choice.value)
    return Caching(dtype, cell.draws_unrounded)


def build_drafter(cell: CellConfig, loaded: LoadedHead | None, shape: DrafterShape) -> Drafter:
    """A drafter with the caches that `shape` asks for."""
    if loaded is not None:
        head, caching = loaded.head, caching_of(cell)
        if isinstance(head, TargetModel):
            return DraftModelDrafter(head, cell.draft_sampling, shape, caching)
        return ChainDrafter(head, cell.draft_sampling, shape, caching)
    if cell.drafter.kind is DrafterKind.ngram:
        return NgramDrafter(cell.drafter.ngram_max, cell.drafter.ngram_min)
    return NoDrafter()
