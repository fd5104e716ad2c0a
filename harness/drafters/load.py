"""From a drafter's kind and files to its network, and from the network to a drafter of a given size."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from harness.config import CellConfig, DrafterConfig, DrafterKind
from harness.drafters.chain import ChainDrafter, DrafterShape, Head
from harness.drafters.draft_model import DraftModelDrafter
from harness.drafters.ngram import NgramDrafter
from harness.drafters.none import NoDrafter
from harness.drafters.protocol import Drafter
from harness.models.checkpoint import checkpoint_folder
from harness.models.eagle import load_eagle
from harness.models.eagle3 import load_eagle3
from harness.models.mtp import load_mtp
from harness.models.target import TargetModel, load_target
from harness.models.vocabulary import check_draft_model
from harness.models.zoo import zoo_path


@dataclass(frozen=True)
class LoadedHead:
    """A drafting network and the folder it came from."""

    head: Head | TargetModel
    """A head that leans on the target's states, or a language model of its own."""
    folder: Path


def load_head(config: DrafterConfig, target: TargetModel) -> LoadedHead | None:
    """Load the network of a drafter for this target; None for the kinds that have none.

    Raises:
        ValueError: the files do not fit the kind or the target.
    """
    if config.kind in (DrafterKind.none, DrafterKind.ngram):
        return None
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


def build_drafter(cell: CellConfig, loaded: LoadedHead | None, shape: DrafterShape) -> Drafter:
    """A drafter with the caches that `shape` asks for."""
    if loaded is not None:
        head = loaded.head
        if isinstance(head, TargetModel):
            return DraftModelDrafter(head, cell.draft_sampling, shape)
        return ChainDrafter(head, cell.draft_sampling, shape)
    if cell.drafter.kind is DrafterKind.ngram:
        return NgramDrafter(cell.drafter.ngram_max, cell.drafter.ngram_min)
    return NoDrafter()
