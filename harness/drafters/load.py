"""From a drafter's kind and files to its network, and from the network to a drafter of a given size."""

from __future__ import annotations

from dataclasses import dataclass

from harness.config import CellConfig, DrafterConfig, DrafterKind
from harness.drafters.chain import ChainDrafter, ChainShape, Head
from harness.drafters.draft_model import DraftModelHead
from harness.drafters.ngram import NgramDrafter
from harness.drafters.none import NoDrafter
from harness.drafters.protocol import Drafter
from harness.models.eagle import load_eagle
from harness.models.eagle3 import load_eagle3
from harness.models.mtp import load_mtp
from harness.models.target import TargetModel, load_target
from harness.models.vocabulary import check_draft_model
from harness.models.zoo import zoo_path


@dataclass(frozen=True)
class LoadedHead:
    """A drafting network."""

    head: Head
    reads_tokens_only: bool = False


def load_head(config: DrafterConfig, target: TargetModel) -> LoadedHead | None:
    """Load the network of a drafter for this target; None for the kinds that have none.

    Raises:
        ValueError: the files do not fit the kind or the target.
    """
    if config.kind in (DrafterKind.none, DrafterKind.ngram):
        return None
    if config.kind is DrafterKind.eagle:
        return LoadedHead(load_eagle(config.path, target, revision=config.revision))
    if config.kind is DrafterKind.eagle3:
        return LoadedHead(load_eagle3(config.path, target, revision=config.revision))
    if config.kind is DrafterKind.mtp:
        return LoadedHead(load_mtp(config.path, target, revision=config.revision))
    path = zoo_path("draft_model") if config.path is None else config.path
    model = load_target(path, device=target.device, dtype=target.dtype, revision=config.revision, name=str(path))
    check_draft_model(model, target)
    return LoadedHead(DraftModelHead(model), reads_tokens_only=True)


def build_drafter(cell: CellConfig, loaded: LoadedHead | None, shape: ChainShape) -> Drafter:
    """A drafter with the caches that `shape` asks for."""
    if loaded is not None:
        return ChainDrafter(loaded.head, cell.draft_sampling, shape, loaded.reads_tokens_only)
    if cell.drafter.kind is DrafterKind.ngram:
        return NgramDrafter(cell.drafter.ngram_max, cell.drafter.ngram_min)
    return NoDrafter()
