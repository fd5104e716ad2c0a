"""Drafts that were drawn with another sampling than their target rows are verified with.

The kernels weigh both rows at one temperature, T. A draft row over T_draft is the row times T / T_draft over T, so a
copy of the drafted rows in those units has the distribution that the proposals were drawn from, and is cut at the same
tokens up to float32's rounding. The price are copies of R * K rows in float32, two at a time; without a sampling of its
own nothing is copied.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from .checks import checked_requests
from .contract import Draft, Sampling, Streams, TokenMask
from .draft_stats import with_row_stats
from .workspace import Workspace


def with_own_sampling(draft: Draft, sampling: Sampling, streams: Streams, workspace: Workspace) -> Draft:
    """The same proposals at the round's temperature, with the statistics of their rows.

    Args:
        draft: with cached logits and a sampling of its own; statistics that were kept are not used.
        sampling: of the round, fields [R].
        streams: of the round, which is only checked with the sampling.
        workspace: scratch memory.
    """
    assert draft.logits is not None and draft.sampling is not None
    (num_requests, width), num_slots = draft.token_ids.shape, draft.logits.shape[0]
    own, _ = checked_requests(num_requests, draft.sampling, streams)
    places = torch.arange(num_requests, device=draft.logits.device)
    # A padded slot may point anywhere, and is not read.
    slots = (places if draft.idx_mapping is None else draft.idx_mapping).clamp(0, num_slots - 1)
    # A greedy request reads no draft row. A temperature of 0 elsewhere is a mistake, and 0 * inf flags it.
    factor = torch.where(sampling.temperature == 0, 1.0, sampling.temperature / own.temperature)
    # a copy, which is changed in place
    rows = draft.logits[slots, :width].float()
    rows = rows.sub_(rows.amax(dim=2, keepdim=True)).mul_(factor[:, None, None])
    mask = None if draft.mask is None else TokenMask(draft.mask.words, draft.mask.rows[slots, :width].contiguous())
    moved = replace(draft, logits=rows, idx_mapping=None, row_stats=None, sampling=None, mask=mask)
    cuts = replace(own, temperature=sampling.temperature, is_mixed=False)
    return with_row_stats(moved, cuts, workspace)
