"""The tokens that a head with a vocabulary of its own can propose, as heads in the layouts of speculators keep them.

d2t [V_draft] int64   offset of each draft id to its target id
t2d [V] bool          target ids that can be drafted
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from harness.models.checkpoint import Checkpoint, CheckpointError, StoredRows
from harness.models.head import Head
from harness.models.target import TargetModel


def register_vocabulary(head: Head, name: str, size: int, draft_token_ids: Tensor) -> None:
    """Set the tokens that a head can propose.

    Args:
        head: gets the buffers d2t and t2d, and `draft_to_target`.
        name: of its kind, in errors.
        size: V_draft.
        draft_token_ids: [V_draft] int64 target ids.

    Raises:
        ValueError: they do not fit.
    """
    target, ids = head.target, draft_token_ids.to(dtype=torch.int64)
    in_range = ids.shape == (size,) and int(ids.min()) >= 0 and int(ids.max()) < target.vocab_size
    if not in_range or ids.unique().numel() != size:
        raise ValueError(
            f"{name} head: expected {size} different token ids of a vocabulary of {target.vocab_size}, "
            f"found {list(ids.shape)}, {ids.unique().numel()} different, from {int(ids.min())} to {int(ids.max())}"
        )
    drawable = torch.zeros(target.vocab_size, dtype=torch.bool, device=ids.device)
    drawable[ids] = True
    offsets = ids - torch.arange(size, device=ids.device)
    head.register_buffer("d2t", offsets.to(target.device))
    head.register_buffer("t2d", drawable.to(target.device))
    same = size == target.vocab_size and not bool(offsets.any())
    head.draft_to_target = None if same else ids.to(target.device)


class DraftVocabulary(NamedTuple):
    """The tokens of a file that a head proposes to its target."""

    size: int
    """V_draft."""
    token_ids: Tensor | None
    """[V_draft] int64 target ids; None for all of the target's."""
    rows: StoredRows
    """Their rows of the file's own output matrix."""


def read_vocabulary(checkpoint: Checkpoint, size: int, num_rows: int, target: TargetModel) -> DraftVocabulary:
    """The draft tokens from the offsets `d2t`, checked against `t2d`; without these, all tokens of a file's vocabulary.

    Args:
        size: draft tokens of the file.
        num_rows: of the vocabulary that the file was made for. Where it is padded further than the target's, ids beyond
            that are left out.
    """
    num_ids, all_of_file = target.vocab_size, torch.arange(size)
    if "d2t" not in checkpoint and size == num_rows:
        if "t2d" in checkpoint and not checkpoint.take("t2d", (num_rows,), of_ids=True).all():
            raise CheckpointError(f"{checkpoint.folder}: expected d2t beside a t2d that leaves tokens out, found none")
        rows = StoredRows(size, slice(num_ids))
        return DraftVocabulary(min(size, num_ids), None if size >= num_ids else all_of_file, rows)
    ids = all_of_file + checkpoint.take("d2t", (size,), of_ids=True).to(torch.int64)
    if "t2d" in checkpoint:
        listed = checkpoint.take("t2d", (num_rows,), of_ids=True).nonzero().flatten()
        if not torch.equal(listed, ids.sort().values):
            raise CheckpointError(
                f"{checkpoint.folder}: expected d2t and t2d to name the same tokens, found {size} and "
                f"{listed.numel()} tokens that differ"
            )
    kept = (ids < num_ids).nonzero().flatten() if num_rows > num_ids else all_of_file
    return DraftVocabulary(len(kept), ids[kept], StoredRows(size, kept))


def is_in_order(token_ids: Tensor | None) -> bool:
    """Whether draft ids are the target's, from the first on."""
    return token_ids is None or torch.equal(token_ids, torch.arange(len(token_ids)))
