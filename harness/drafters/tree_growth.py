"""How a round's trees grow: what a drafter with a network reads, level by level, and the children that it gives.

    growth = shape.grow(batch, logits)
    for depth in range(shape.depth):
        level = growth.level(depth)         # the nodes to read; at depth 0 the context, whose end is known already
        growth.add(logits of these nodes)   # their children
    draft = growth.draft()

Shapes: B rows, N draft tokens, P nodes of a level, M nodes that were read up to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from torch import Tensor

from harness.models.tree_places import TreePlaces
from kernels.contract import Draft

if TYPE_CHECKING:
    from harness.drafters.draft_logits import DraftLogits
    from harness.drafters.protocol import Batch


class NodesToRead(NamedTuple):
    """The nodes of one depth whose children are drafted."""

    token_ids: Tensor
    """[B, P] int64, valid ids also where there is no node."""
    above: Tensor
    """[B, P] int64, place of each node's parent in the level before; 0 for those after the context."""
    places: Tensor
    """[P] int64, where they lie in the drafter's cache, from the first node that it reads on."""
    sees: Tensor
    """[P, M] or [B, P, M] bool, the nodes that each one sees, among those that were read up to here."""
    drafted: Tensor
    """[B, P] int64, the same ids; NO_TOKEN where the law that siblings are drawn from had no more tokens."""

    @property
    def num_read(self) -> int:
        """M."""
        return self.sees.shape[-1]

    def tree_places(self, starts: Tensor) -> TreePlaces:
        """The places of a forward over the nodes.

        Args:
            starts: [B] int64, place in each slot of the first node that the drafter reads.
        """
        return TreePlaces(starts, self.places, self.sees)

    def of_parents(self, states: Tensor) -> Tensor:
        """[B, P, H] from the states [B, P', H] of the level before."""
        return states.gather(1, self.above[:, :, None].expand(-1, -1, states.shape[2]))


class Growth(Protocol):
    """The trees of one round."""

    def level(self, depth: int) -> NodesToRead:
        """The nodes of a depth from 1 on whose children are drafted, once those of the depths before are there."""
        ...

    def add(self, logits: Tensor) -> None:
        """Draft the children of the level, [B, P, V_draft]; the context's first, with P = 1."""
        ...

    def draft(self) -> Draft:
        """The proposals."""
        ...

    @property
    def places(self) -> Tensor:
        """[B, N] int64, where each draft token lies in the drafter's cache, from the first node on; -1: not read.
        Known after `draft`."""
        ...


class TreeShape(Protocol):
    """Which trees a drafter may draft."""

    @property
    def num_nodes(self) -> int:
        """N, draft tokens of a round at most."""
        ...

    @property
    def depth(self) -> int:
        """Of the deepest of them, at most."""
        ...

    @property
    def num_read(self) -> int:
        """Nodes that a drafter with a network reads in a round, at most; more than N where it chooses from them."""
        ...

    def grow(self, batch: Batch, logits: DraftLogits) -> Growth:
        """Begin the trees of a round."""
        ...

    def sees_of(self, draft: Draft) -> Tensor:
        """[N + 1, N + 1] or [B, N + 1, N + 1] bool, what each token of the target sees: 0 is the last of the context,
        i + 1 draft token i."""
        ...
