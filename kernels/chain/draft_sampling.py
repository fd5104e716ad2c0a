"""Drafts that were drawn with another sampling than their target rows are verified with.

The kernels weigh both rows at one temperature, T. A draft row over T_draft is the row times T / T_draft over T, so a
copy of the drafted rows in those units has the distribution that the proposals were drawn from, and is cut at the same
tokens up to float32's rounding. A row at T_draft = 0 keeps its largest logit alone, which is then certain. The cost is
copies of R * K rows in float32, two at a time; a draft without a sampling of its own is not copied.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ..checks import checked_requests
from ..contract import Draft, Sampling, Streams, TokenMask
from ..launch.workspace import Workspace
from ..reference.token_mask import allowed_tokens
from ..rows.token_mask import mask_rows
from .draft_stats import with_row_stats


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
    is_certain = own.temperature == 0
    # A greedy request reads no draft row.
    factor = torch.where(is_certain | (sampling.temperature == 0), 1.0, sampling.temperature / own.temperature)
    # for its checks: the mask is indexed below
    mask_rows(draft.mask, "draft.mask", (num_slots, width), draft.logits.shape[2], draft.draft_to_target)
    # a copy, which is changed in place
    rows = draft.logits[slots, :width].float()
    mask = None if draft.mask is None else TokenMask(draft.mask.words, draft.mask.rows[slots, :width].contiguous())
    if mask is not None:
        # a forbidden logit must not be the largest
        rows.masked_fill_(_forbidden(mask, rows.shape[2], draft.draft_to_target), -torch.inf)
    largest, place = rows.max(dim=2, keepdim=True)
    alone = is_certain[:, None, None]
    # Rows at T_draft = 0 become -inf but for this entry; NaN keeps a row without a distribution invalid.
    kept = torch.where(largest.isfinite(), 0.0, torch.nan)
    rows = rows.sub_(torch.where(alone, torch.inf, largest)).mul_(factor[:, None, None])
    rows = rows.scatter_(2, place, torch.where(alone, kept, rows.gather(2, place)))
    moved = replace(draft, logits=rows, idx_mapping=None, row_stats=None, sampling=None, mask=mask)
    cuts = replace(own, temperature=sampling.temperature, is_mixed=False)
    return with_row_stats(moved, cuts, workspace)


def _forbidden(mask: TokenMask, num_tokens: int, draft_to_target: Tensor | None) -> Tensor:
    """[R, K, V_draft] bool, the tokens that a mask with rows [R, K] forbids."""
    device = mask.words.device
    ids = torch.arange(num_tokens, device=device) if draft_to_target is None else draft_to_target
    rows = mask.rows.flatten()
    allowed = allowed_tokens(mask.words[rows.clamp(min=0)], ids) | (rows < 0)[:, None]
    return ~allowed.view(*mask.rows.shape, num_tokens)
