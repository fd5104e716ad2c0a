"""The tokens that a head with a vocabulary of its own can propose, as heads in the layouts of speculators keep them.

d2t [V_draft] int64   offset of each draft id to its target id
t2d [V] bool          target ids that can be drafted
"""

from __future__ import annotations

import torch
from torch import Tensor

from harness.models.checkpoint import Checkpoint, CheckpointError
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


def read_vocabulary(checkpoint: Checkpoint, size: int, target: TargetModel) -> Tensor | None:
    """[V_draft] int64 target ids of the draft tokens, from the offsets `d2t`, checked against `t2d`; None for all."""
    if "d2t" not in checkpoint and size == target.vocab_size:
        return None
    ids = torch.arange(size) + checkpoint.take("d2t", (size,)).to(torch.int64)
    if "t2d" in checkpoint:
        listed = checkpoint.take("t2d", (target.vocab_size,)).nonzero().flatten()
        if not torch.equal(listed, ids.sort().values):
            raise CheckpointError(
                f"{checkpoint.folder}: expected d2t and t2d to name the same tokens, found {size} and "
                f"{listed.numel()} tokens that differ"
            )
    return ids
