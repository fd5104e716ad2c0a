"""Dynamic trees: in each round the nodes that the drafter finds most probable (kernels.tree.dynamic_shape).

Trees differ by request. Proposals are one-hot: rows alone decide which tokens are drafted.

Shapes: as in tree_growth, W the width of the tree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from harness.config.tree import DynamicTree
from harness.drafters.protocol import Batch
from harness.drafters.tree_growth import NodesToRead
from harness.models.tree_places import ancestors
from kernels.contract import Draft
from kernels.tree.dynamic_shape import Candidates, ChosenTree

if TYPE_CHECKING:
    from harness.drafters.draft_logits import DraftLogits


@dataclass(frozen=True)
class DynamicTreeShape:
    """What bounds the trees of every round."""

    bounds: DynamicTree

    @property
    def num_nodes(self) -> int:
        return self.bounds.num_nodes

    @property
    def depth(self) -> int:
        return self.bounds.depth

    @property
    def num_read(self) -> int:
        return self.bounds.num_read

    def grow(self, batch: Batch, logits: DraftLogits) -> DynamicGrowth:
        return DynamicGrowth(self.bounds, batch, logits)

    def sees_of(self, draft: Draft) -> Tensor:
        return target_sees(draft)


def target_sees(draft: Draft) -> Tensor:
    """[B, N + 1, N + 1] bool, see TreeShape.sees_of; a place without a token sees the context and itself."""
    assert draft.parents is not None
    return ancestors(torch.cat([torch.full_like(draft.parents[:, :1], -1), draft.parents + 1], dim=1))


class DynamicGrowth:
    """The trees of one round."""

    def __init__(self, bounds: DynamicTree, batch: Batch, logits: DraftLogits) -> None:
        self._bounds, self._batch, self._logits = bounds, batch, logits
        self._candidates = Candidates()
        self._chosen: ChosenTree | None = None
        self._sees = torch.zeros(batch.num_rows, 1, 0, dtype=torch.bool, device=batch.lengths.device)
        """[B, P, M] of the level."""

    def level(self, depth: int) -> NodesToRead:
        before = self._sees
        beam = self._candidates.next_beam(self._bounds.width)
        num_rows, num_new = beam.token_ids.shape
        seen_above = before.gather(1, beam.above[:, :, None].expand(-1, -1, before.shape[2]))
        own = torch.eye(num_new, dtype=torch.bool, device=before.device).expand(num_rows, -1, -1)
        self._sees = torch.cat([seen_above, own], dim=2)
        places = before.shape[2] + torch.arange(num_new, device=before.device)
        return NodesToRead(beam.token_ids.clamp_min(0), beam.above, places, self._sees, beam.token_ids)

    def add(self, logits: Tensor) -> None:
        self._candidates.add(*self._logits.best_children(logits, self._batch, self._bounds.width))

    @property
    def places(self) -> Tensor:
        assert self._chosen is not None, "places are known once the tree is drafted"
        return self._chosen.places

    def draft(self) -> Draft:
        chosen = self._chosen = self._candidates.best(self._bounds.num_nodes)
        return Draft(chosen.token_ids, chosen.num_draft_tokens, parents=chosen.parents)
