"""Drafters of trees: a head or a language model reads the tree level by level, and gives each node's children.

A node lies in the drafter's cache after the context, sees the context and its ancestors, and has the position of its
depth. Which nodes there are is the shape's matter (harness.drafters.tree_growth).

Shapes: B rows, N draft tokens, D the depth of the tree, P nodes of a level.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

import torch
from torch import Tensor

from harness.drafters.chain import ChainDrafter, DrafterShape
from harness.drafters.draft_logits import AS_DRAFTED, Caching
from harness.drafters.draft_model_run import DraftModelDrafter
from harness.drafters.protocol import Batch
from harness.drafters.tree_growth import NodesToRead, TreeShape
from harness.models.head import Head
from harness.models.target import TargetModel
from kernels.contract import Draft, DraftSampling

if TYPE_CHECKING:
    from harness.drafters.registry import DrafterSetup


@runtime_checkable
class DraftsTrees(Protocol):
    """The methods of a drafter of trees that `Drafter` does not have."""

    tree: TreeShape

    def keep_path(self, rows: slice | Tensor, starts: Tensor, path: Tensor) -> None:
        """Move what the cache holds of the accepted path together; called between verification and `extend`.

        Args:
            rows: slots of the B rows, a slice or [B] int64.
            starts: [B] int64, number of tokens of each row when it was drafted.
            path: [B, D] int64, accepted draft tokens, the first of them first; -1 beyond.
        """
        ...


@runtime_checkable
class ReadsNodes(Protocol):
    """What a drafter of trees may have beside it that learns from nodes whether or not they are accepted."""

    def read_nodes(self, logits: Tensor, num_accepted: Tensor, counts: Tensor) -> None:
        """Read what the target found at every node; called between verification and `keep_path`.

        Args:
            logits: [B, N + 1, V] the target's rows: 0 after the context's last token, i + 1 after node i.
            num_accepted: [B] int64.
            counts: [B] bool, rows in which a round was decided; the others have no meaning.
        """
        ...


class TreeHeadDrafter(ChainDrafter):
    """Drafts a tree with a head. `extend` feeds it the accepted path, which overwrites the nodes in its cache."""

    def __init__(
        self,
        head: Head,
        draft_sampling: DraftSampling,
        shape: DrafterShape,
        tree: TreeShape,
        caching: Caching = AS_DRAFTED,
    ) -> None:
        super().__init__(head, draft_sampling, shape, caching)
        self.tree = tree

    def propose(self, batch: Batch) -> Draft:
        """Draft the tree of each row; the logits that siblings are drawn from stay in the cache."""
        hidden = self._hidden[: batch.num_rows].unsqueeze(1)
        features = self._features[: batch.num_rows].unsqueeze(1)
        growth = self.tree.grow(batch, self._logits)
        growth.add(self.head.logits(hidden))
        # pair t reads token x_{t + 1}: draft tokens of depth 1, at position n, belong to pair n - 1
        starts = batch.lengths - 1
        for depth in range(1, self.tree.depth):
            level = growth.level(depth)
            pairs = _positions(starts + (depth - 1), level)
            view = self._cache.view(batch.rows, pairs, batch.length - 1 + level.num_read, level.tree_places(starts))
            output = self.head(level.token_ids, level.of_parents(features), pairs, view)
            features = output.next_features
            growth.add(self.head.logits(output.hidden))
        return growth.draft()

    def keep_path(self, rows: slice | Tensor, starts: Tensor, path: Tensor) -> None:
        """Nothing is kept; see the class."""


class TreeModelDrafter(DraftModelDrafter):
    """Drafts a tree with a language model, which reads the nodes that have children, and a leaf in the next round."""

    def __init__(
        self,
        model: TargetModel,
        draft_sampling: DraftSampling,
        shape: DrafterShape,
        tree: TreeShape,
        caching: Caching = AS_DRAFTED,
    ) -> None:
        super().__init__(model, draft_sampling, shape, caching)
        self.tree = tree

    def propose(self, batch: Batch) -> Draft:
        """Draft the tree of each row; the logits that siblings are drawn from stay in the cache."""
        growth, starts = self.tree.grow(batch, self._logits), batch.lengths
        positions, read, length = self._last_tokens(batch)
        hidden = self._forward(read, positions, self._cache.view(batch.rows, positions, length))
        growth.add(self._draft_rows(hidden[:, -1:], batch))
        for depth in range(1, self.tree.depth):
            level = growth.level(depth)
            positions = _positions(starts + (depth - 1), level)
            view = self._cache.view(batch.rows, positions, batch.length + level.num_read, level.tree_places(starts))
            hidden = self._forward(level.token_ids, positions, view)
            growth.add(self._draft_rows(hidden, batch, level=level))
        draft = growth.draft()
        self._places = growth.places
        return draft

    def keep_path(self, rows: slice | Tensor, starts: Tensor, path: Tensor) -> None:
        """Move the nodes of the path that it has read together, after the context."""
        places = torch.where(path < 0, -1, self._places.gather(1, path.clamp_min(0)))
        self._cache.keep_path(rows, starts, places)


def model_drafter(setup: DrafterSetup) -> DraftModelDrafter:
    """What drafts with a language model: trees where the setup has one, else chains."""
    if setup.tree is not None:
        return TreeModelDrafter(setup.model, setup.draft_sampling, setup.shape, setup.tree, setup.caching)
    return DraftModelDrafter(setup.model, setup.draft_sampling, setup.shape, setup.caching)


def _positions(starts: Tensor, level: NodesToRead) -> Tensor:
    """[B, P] int64, the same for all nodes of a level."""
    return starts.unsqueeze(1).expand(-1, level.token_ids.shape[1]).contiguous()
