"""Drafters of fixed trees: a head or a language model reads the tree level by level and draws each node's children.

All requests draft the same shape. A node lies in the drafter's cache after the context, sees the context and its
ancestors, and has the position of its depth.

Shapes: B rows, N draft tokens, D the depth of the tree, P nodes of a level.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from harness.drafters.chain import ChainDrafter, DrafterShape
from harness.drafters.draft_logits import AS_DRAFTED, Caching
from harness.drafters.draft_model import DraftModelDrafter
from harness.drafters.draft_tree import DraftTree, Level
from harness.drafters.protocol import Batch
from harness.models.head import Head
from harness.models.target import TargetModel
from kernels.contract import NO_TOKEN, Draft, DraftSampling


@runtime_checkable
class DraftsTrees(Protocol):
    """The methods of a drafter of trees that `Drafter` does not have."""

    tree: DraftTree

    def keep_path(self, starts: Tensor, path: Tensor) -> None:
        """Move what the cache holds of the accepted path together; called between verification and `extend`.

        Args:
            starts: [B] int64, number of tokens of each row when it was drafted.
            path: [B, D] int64, accepted draft tokens, the first of them first; -1 beyond.
        """
        ...


class TreeHeadDrafter(ChainDrafter):
    """Drafts a tree with a head. `extend` feeds it the accepted path, which overwrites the nodes in its cache."""

    def __init__(
        self,
        head: Head,
        draft_sampling: DraftSampling,
        shape: DrafterShape,
        tree: DraftTree,
        caching: Caching = AS_DRAFTED,
    ) -> None:
        super().__init__(head, draft_sampling, shape, caching)
        self.tree = tree

    def propose(self, batch: Batch) -> Draft:
        """Draft the tree of each row; the logits that siblings are drawn from stay in the cache."""
        hidden = self._hidden[: batch.num_rows].unsqueeze(1)
        features = self._features[: batch.num_rows].unsqueeze(1)
        token_ids = _no_tokens(batch, self.tree)
        # pair t reads token x_{t + 1}: draft tokens of depth 1, at position n, belong to pair n - 1
        starts = batch.lengths - 1
        for level in self.tree.levels:
            if level.depth:
                pairs = _positions(starts + (level.depth - 1), level)
                view = self._cache.view(batch.rows, pairs, batch.length - 1 + level.num_read, level.tree_places(starts))
                read = token_ids[:, level.nodes].clamp_min(0)
                output = self.head(read, features[:, level.above], pairs, view)
                hidden, features = output.hidden, output.next_features
            self._logits.draw_children(self.head.logits(hidden), token_ids, batch, level, self.tree.siblings)
        return self._logits.draft_of_tree(token_ids, batch, self.tree)

    def keep_path(self, starts: Tensor, path: Tensor) -> None:
        """Nothing is kept; see the class."""


class TreeModelDrafter(DraftModelDrafter):
    """Drafts a tree with a language model, which reads the nodes that have children, and a leaf in the next round."""

    def __init__(
        self,
        model: TargetModel,
        draft_sampling: DraftSampling,
        shape: DrafterShape,
        tree: DraftTree,
        caching: Caching = AS_DRAFTED,
    ) -> None:
        super().__init__(model, draft_sampling, shape, caching)
        self.tree = tree

    def propose(self, batch: Batch) -> Draft:
        """Draft the tree of each row; the logits that siblings are drawn from stay in the cache."""
        token_ids, starts = _no_tokens(batch, self.tree), batch.lengths
        for level in self.tree.levels:
            if level.depth:
                read, positions = token_ids[:, level.nodes].clamp_min(0), _positions(starts + (level.depth - 1), level)
                length, places = batch.length + level.num_read, level.tree_places(starts)
            else:
                positions, read, length = self._last_tokens(batch)
                places = None
            view = self._cache.view(batch.rows, positions, length, places)
            hidden = self.model.forward(read, positions, view).hidden
            if level.depth == 0:
                hidden = hidden[:, -1:]
            self._logits.draw_children(self.model.logits(hidden), token_ids, batch, level, self.tree.siblings)
        return self._logits.draft_of_tree(token_ids, batch, self.tree)

    def keep_path(self, starts: Tensor, path: Tensor) -> None:
        """Move the nodes of the path that it has read together, after the context."""
        places = torch.where(path < 0, -1, self.tree.place_of[path.clamp_min(0)])
        self._cache.keep_path(starts, places)


def _no_tokens(batch: Batch, tree: DraftTree) -> Tensor:
    """[B, N] int64 NO_TOKEN: nothing has been drawn yet."""
    return torch.full((batch.num_rows, tree.num_nodes), NO_TOKEN, device=batch.lengths.device)


def _positions(starts: Tensor, level: Level) -> Tensor:
    """[B, P] int64, the same for all nodes of a level."""
    return starts.unsqueeze(1).expand(-1, len(level.nodes)).contiguous()
