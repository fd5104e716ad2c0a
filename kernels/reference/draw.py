"""Draw one token per row from the processed distribution: drafts, and tokens of the target without a draft."""

from __future__ import annotations

import torch
from torch import Tensor

from ..contract import Drawn, RowStats, Sampling, Streams, TokenMask
from ..random.streams import Purpose, uniform
from .choose import choose
from .token_mask import without_forbidden
from .truncation import Processed, keep_row_stats, processed


def drawn(rows: Processed, token_ids: Tensor, draft_to_target: Tensor | None) -> Drawn:
    """What was drawn, from ids of the rows' own vocabulary ([N] int64).

    The log probability of an invalid row is NaN.
    """
    index = torch.arange(len(token_ids), device=token_ids.device)
    logprobs = rows.logprobs_at(index, token_ids).masked_fill(rows.invalid, float("nan")).float()
    if draft_to_target is not None:
        token_ids = draft_to_target[token_ids]
    return Drawn(token_ids, logprobs, rows.invalid)


def draw(
    logits: Tensor,
    sampling: Sampling,
    streams: Streams,
    purpose: Purpose,
    draft_to_target: Tensor | None = None,
    row_stats: RowStats | None = None,
    mask: TokenMask | None = None,
) -> Drawn:
    """Draw one token per row, with one uniform number per row.

    Args:
        logits: [N, V_draft], any floating dtype; verification must later see the very same values.
        sampling: fields [N]; a row with temperature 0 gets its argmax, the lowest id among equals.
        streams: fields [N]; `positions` is the position of the token being drawn.
        purpose: `Purpose.draft` for drafts.
        draft_to_target: [V_draft] int64, or None when the ids are the target's.
        row_stats: fields [N], any strides; the statistics of the rows are written into them. None to keep none.
        mask: `rows` [N], of the target's token ids; None when the rows are free.

    Returns:
        Drawn, fields [N].
    """
    if mask is not None:
        logits = without_forbidden(logits, mask, draft_to_target)
    chosen: list[Tensor] = []
    uniforms = None
    if not bool((sampling.temperature == 0).all()):
        uniforms = uniform(streams.seeds, purpose, streams.positions, streams.rounds)

    def choose_from(part: slice, weights: Tensor) -> None:
        assert uniforms is not None
        chosen.append(choose(weights, uniforms[part]))

    rows = processed(logits, sampling, choose_from)
    if row_stats is not None:
        keep_row_stats(rows, sampling, row_stats)
    token_ids = torch.where(rows.certain >= 0, rows.certain, torch.cat(chosen)) if chosen else rows.certain
    return drawn(rows, token_ids, draft_to_target)
