"""Draw the children of a node: several tokens from one row, independent or distinct.

Shapes: N rows, V_draft the drafter's vocabulary, n children of each row.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..contract import NO_TOKEN, RowStats, Sampling, Streams, TokenMask
from ..methods import SMALLEST_REST, SiblingDraws
from ..random.streams import Purpose, uniform
from .choose import choose
from .token_mask import without_forbidden
from .truncation import keep_row_stats, processed


def draw_children(
    logits: Tensor,
    sampling: Sampling,
    streams: Streams,
    siblings: SiblingDraws,
    branches: Tensor,
    draft_to_target: Tensor | None = None,
    mask: TokenMask | None = None,
    row_stats: RowStats | None = None,
) -> Tensor:
    """Draw n tokens per row, each with one uniform number; a single child of branch 0 is what `draw` draws.

    Args:
        logits: [N, V_draft], any floating dtype; verification must later see the very same values.
        sampling: fields [N]. At temperature 0 the children are the largest logits in their order, the lowest id first
            among equals, whichever way siblings are drawn: verification takes them as certain.
        streams: fields [N]; `positions` is the position of the children.
        siblings: how they are drawn.
        branches: [N, n] int64, what tells each child from other nodes of its depth (tree_shape.branches).
        draft_to_target: [V_draft] int64, or None when the ids are the target's.
        mask: `rows` [N], of the target's token ids; None when the rows are free.
        row_stats: fields [N], written in place: the statistics of the rows, for verification.

    Returns:
        [N, n] int64, ids of the target's vocabulary; NO_TOKEN where a row has no further token for a distinct child
        (SMALLEST_REST), or no distribution.
    """
    if mask is not None:
        logits = without_forbidden(logits, mask, draft_to_target)
    rows, num_children = processed(logits, sampling), branches.shape[1]
    if row_stats is not None:
        keep_row_stats(rows, sampling, row_stats)
    found = torch.full(branches.shape, NO_TOKEN, device=logits.device)
    drawn = ((sampling.temperature > 0) & ~rows.invalid).nonzero()[:, 0]
    weights = rows.probs(drawn)
    seeds, positions, rounds = streams.seeds[drawn], streams.positions[drawn], streams.rounds[drawn]
    for child in range(num_children):
        left = (weights.sum(dim=1) >= SMALLEST_REST).nonzero()[:, 0]
        uniforms = uniform(seeds[left], Purpose.draft, positions[left], rounds[left], branches[drawn[left], child])
        token_ids = choose(weights[left], uniforms)
        found[drawn[left], child] = token_ids
        if siblings is SiblingDraws.distinct:
            weights[left, token_ids] = 0.0
    certain = ((sampling.temperature == 0) & ~rows.invalid).nonzero()[:, 0]
    best = logits[certain].sort(dim=1, descending=True, stable=True)
    width = min(num_children, logits.shape[1])
    found[certain, :width] = torch.where(best.values > -torch.inf, best.indices, NO_TOKEN)[:, :width]
    if draft_to_target is None:
        return found
    return torch.where(found == NO_TOKEN, NO_TOKEN, draft_to_target[found.clamp(min=0)])
