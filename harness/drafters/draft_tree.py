"""A fixed tree of drafts as tensors: the nodes that a drafter reads level by level, and the children that it draws.

Nodes 0 to N - 1 are the draft tokens. A drafter reads only the nodes that have children. They lie in its cache by
depth, and within a depth by number.

Shapes: B rows, N draft tokens; of a level P nodes, M nodes that were read up to it; of a family F nodes with n children
each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from harness.config.tree import Tree, depths_of
from harness.drafters.protocol import Batch
from harness.drafters.tree_growth import NodesToRead
from harness.models.tree_places import ancestors
from kernels.contract import NO_TOKEN, Draft, SiblingDraws
from kernels.reference.tree_shape import branches, depths

if TYPE_CHECKING:
    from harness.drafters.draft_logits import DraftLogits


class Family(NamedTuple):
    """Nodes of one level with equally many children, which are drawn in one call."""

    rows: Tensor
    """[F] int64, places of the nodes in their level."""
    children: Tensor
    """[F, n] int64, their children in order."""
    branches: Tensor
    """[F, n] int64, kernels.reference.tree_shape.branches of the children."""


class Level(NamedTuple):
    """The nodes of one depth that have children."""

    depth: int
    """0 is the context alone."""
    nodes: Tensor
    """[P] int64; -1 is the context."""
    above: Tensor
    """[P] int64, place of each node's parent in the level before; 0 for the context."""
    places: Tensor
    """[P] int64, where they lie in the drafter's cache, from the first node that it reads on."""
    sees: Tensor
    """[P, M] bool, the nodes that each one sees, among those that were read up to here."""
    families: tuple[Family, ...]


class DraftTree:
    """The shape that every request's draft has."""

    def __init__(self, parents: Tree, siblings: SiblingDraws, device: torch.device | str = "cpu") -> None:
        self.siblings = siblings
        self.shape = parents
        self.node_depths = depths_of(parents)
        """[N], 1 follows the context."""
        self.depth = max(self.node_depths)
        self._device = device
        self.parents = self._tensor(parents)
        """[N] int64."""
        sees = ancestors(torch.tensor([-1, *(parent + 1 for parent in parents)]))
        self.sees = sees.to(device)
        """[N + 1, N + 1] bool, what each token of the target sees: 0 is the last of the context, i + 1 node i."""
        read = sorted(set(parents) - {-1}, key=lambda node: (self.node_depths[node], node))
        self.place_of = self._tensor([read.index(node) if node in read else -1 for node in range(len(parents))])
        """[N] int64, where each node lies in the drafter's cache, from the first one on; -1: it is not read."""
        self.num_read = len(read)
        self.levels = tuple(self._levels(parents, read, sees))

    @property
    def num_nodes(self) -> int:
        """N."""
        return len(self.node_depths)

    def grow(self, batch: Batch, logits: DraftLogits) -> FixedGrowth:
        """See TreeShape."""
        return FixedGrowth(self, batch, logits)

    def sees_of(self, draft: Draft) -> Tensor:
        """See TreeShape."""
        return self.sees

    def _levels(self, parents: Tree, read: list[int], sees: Tensor) -> Iterator[Level]:
        at_branch = branches(depths(torch.tensor([parents])))[0].tolist()
        before, num_read = [-1], 0
        for depth in range(self.depth):
            nodes = [node for node in read if self.node_depths[node] == depth] if depth else [-1]
            num_read += len(nodes) if depth else 0
            yield Level(
                depth,
                self._tensor(nodes),
                self._tensor([before.index(parents[node]) if depth else 0 for node in nodes]),
                self._tensor([read.index(node) if depth else 0 for node in nodes]),
                sees[torch.tensor(nodes) + 1][:, torch.tensor(read[:num_read], dtype=torch.int64) + 1].to(self._device),
                tuple(self._families(parents, nodes, at_branch)),
            )
            before = nodes

    def _families(self, parents: Tree, nodes: list[int], at_branch: list[int]) -> Iterator[Family]:
        children = [[place for place, parent in enumerate(parents) if parent == node] for node in nodes]
        for size in sorted({len(each) for each in children}):
            rows = [row for row, each in enumerate(children) if len(each) == size]
            drawn = [children[row] for row in rows]
            at = [[at_branch[place] for place in each] for each in drawn]
            yield Family(self._tensor(rows), self._tensor(drawn), self._tensor(at))

    def _tensor(self, values: Sequence[int] | Sequence[Sequence[int]]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self._device)


class FixedGrowth:
    """The trees of one round, all of one shape; see harness.drafters.tree_growth.Growth."""

    def __init__(self, tree: DraftTree, batch: Batch, logits: DraftLogits) -> None:
        self._tree, self._batch, self._logits = tree, batch, logits
        self._token_ids = torch.full((batch.num_rows, tree.num_nodes), NO_TOKEN, device=batch.lengths.device)
        self._level = tree.levels[0]

    def level(self, depth: int) -> NodesToRead:
        level = self._level = self._tree.levels[depth]
        above = level.above.expand(self._batch.num_rows, -1)
        drafted = self._token_ids[:, level.nodes]
        return NodesToRead(drafted.clamp_min(0), above, level.places, level.sees, drafted)

    def add(self, logits: Tensor) -> None:
        self._logits.draw_children(logits, self._token_ids, self._batch, self._level, self._tree.siblings)

    @property
    def places(self) -> Tensor:
        return self._tree.place_of.expand(self._batch.num_rows, -1)

    def draft(self) -> Draft:
        return self._logits.draft_of_tree(self._token_ids, self._batch, self._tree)
