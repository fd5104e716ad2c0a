"""Rows whose tokens are nodes of trees, as the fused operations take them.

The nodes of a row lie in its slot one after the other. A forward reads all of them, or the last ones, those of a level:
with M nodes and T tokens its first token lies at `starts[r]`, and node 0 at starts[r] + T - M.

Shapes: R rows, T tokens of a row, M nodes that lie in a slot after the forward.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

MAX_NODES = 63
"""Bits of a mask, without the sign."""


class TreeRows(NamedTuple):
    """What each token sees, and where it stands."""

    seen: Tensor
    """[R, T] int64; bit m: the token sees node m. All that lies before node 0 is seen too."""
    positions: Tensor
    """[R, T] int64 without gaps, by which queries and keys are rotated."""
    num_nodes: int
    """M."""

    @classmethod
    def of(
        cls,
        # [T, M] or [R, T, M] bool
        sees: Tensor,
        # [R, T] int64
        positions: Tensor,
    ) -> TreeRows:
        """From the nodes that each token sees.

        Raises:
            ValueError: there are more nodes than a mask has bits.
        """
        num_nodes = sees.shape[-1]
        if num_nodes > MAX_NODES:
            raise ValueError(f"expected at most {MAX_NODES} nodes of a tree for fused layers, found {num_nodes}")
        bits = sees.long() << torch.arange(num_nodes, device=sees.device)
        return cls(bits.sum(dim=-1).expand(positions.shape).contiguous(), positions.contiguous(), num_nodes)

    def visible(
        self,
        # [R] int64
        starts: Tensor,
        num_places: int,
    ) -> Tensor:
        """[R, T, num_places] bool, the places of its slot that each token sees."""
        first = starts + self.seen.shape[1] - self.num_nodes
        node = torch.arange(num_places, device=starts.device) - first[:, None, None]
        return (node < 0) | ((self.seen[:, :, None] >> node.clamp(0, MAX_NODES)) & 1).bool()
