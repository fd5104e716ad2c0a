"""Statistics of rows that are read for them alone, such as cached draft rows whose statistics were not kept."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ..checks import check_mask
from ..contract import Draft, RowStats, Sampling, VerificationMethod
from ..launch.kernel_args import DraftTokens, MaskRows, Output, RowBuffers, StreamState, TargetRows
from ..launch.workspace import Shape, Workspace
from ..methods.hooks import hooks_of
from ..rows.token_mask import mask_rows
from ..rows.unaligned import read_in_words
from .launch_args import Round, no_draft
from .passes import read_rows


def _mask_of_rows(draft: Draft, cache: Tensor) -> MaskRows:
    """The mask of all rows of the cache, one after another; those that no draft uses are free."""
    if draft.mask is None:
        return MaskRows()
    (num_slots, _, vocab_size), width = cache.shape, draft.token_ids.shape[1]
    check_mask(draft.mask, "draft.mask", (num_slots, width), num_words=0)
    rows = draft.mask.rows.new_full((num_slots, cache.stride(0) // cache.stride(1)), -1)
    rows[:, :width] = draft.mask.rows[:num_slots, :width]
    flat = replace(draft.mask, rows=rows.flatten())
    return mask_rows(flat, "draft.mask", flat.rows.shape, vocab_size, draft.draft_to_target)


def read_statistics(
    rows: TargetRows,
    sampling: Sampling,
    counts: Tensor,
    shape: Shape,
    workspace: Workspace,
    keep: RowStats | None = None,
) -> RowBuffers:
    """Read rows for their statistics alone.

    Args:
        rows: with `first_rows` [N], each row's place.
        sampling: fields [N].
        counts: [N] int64, 0 for a row that is read, -1 for another.
        shape: of N requests without drafts.
        workspace: scratch memory.
        keep: fields [N], takes the statistics instead of scratch memory.

    Returns:
        Where they are, and the argmax of rows at temperature 0.
    """
    unread = torch.empty_like(counts)
    round_ = Round(
        hooks=hooks_of(VerificationMethod.strict),
        traits=VerificationMethod.strict.traits,
        target=rows,
        draft=no_draft(),
        tokens=DraftTokens(counts, 0, counts, shape.num_requests, 0),
        sampling=sampling,
        streams=StreamState(counts, counts, counts),
        rule=counts,
        rows=workspace.row_buffers(shape, counts.device, keep),
        state=workspace.round_state(shape, counts.device),
        output=Output(unread, unread, torch.empty_like(counts, dtype=torch.bool), None, None),
        shape=shape,
        workspace=workspace,
    )
    read_rows(round_)
    return round_.rows


def with_row_stats(draft: Draft, sampling: Sampling, workspace: Workspace) -> Draft:
    """The same draft with the statistics of its rows.

    Args:
        draft: with cached logits.
        sampling: fields [R].
        workspace: scratch memory.
    """
    cache = draft.logits
    assert cache is not None
    device, (num_slots, depth, vocab_size) = cache.device, cache.shape
    num_requests, width = draft.token_ids.shape
    if cache.stride(0) % cache.stride(1) != 0:
        cache = cache.contiguous()
    slots = torch.arange(num_requests, device=device) if draft.idx_mapping is None else draft.idx_mapping
    positions = torch.arange(width, device=device)
    # A padded slot may point anywhere: some row is read, and its statistics go beyond the slots, unused.
    first_rows = (slots.clamp(0, num_slots - 1)[:, None] * (cache.stride(0) // cache.stride(1)) + positions).flatten()
    num_rows = num_requests * width
    shape = Shape(num_rows, width=0, vocab_size=vocab_size, num_positions=1)
    no_drafts = torch.zeros(num_rows, dtype=torch.int64, device=device)
    rows = TargetRows(
        cache, cache.stride(1), vocab_size, first_rows, read_in_words(cache, cache.stride(1)), None,
        *_mask_of_rows(draft, cache),
    )  # fmt: skip
    found = RowStats.empty(num_rows, device=device)
    each = sampling.each(lambda field: field.repeat_interleave(width))
    read_statistics(rows, each, no_drafts, shape, workspace, found)
    kept = RowStats.empty(num_slots + 1, depth, device=device)
    places = torch.where(draft.num_draft_tokens < 0, num_slots, slots)[:, None], positions
    for name in ("maximum", "normalizer", "threshold"):
        getattr(kept, name)[places] = getattr(found, name).view(num_requests, width)
    return replace(draft, logits=cache, row_stats=kept)
