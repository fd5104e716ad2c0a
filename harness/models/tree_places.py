"""Where the nodes of trees lie in a slot, and which of them each token sees.

Nodes lie one after the other from a start on, in the order in which they were written; everything before the start is
seen by all. Several forwards may write one tree, level by level.

Shapes: B rows of a forward, T tokens of a row, M nodes that lie in the slot after the forward.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class TreePlaces(NamedTuple):
    """The nodes that one forward reads."""

    starts: Tensor
    """[B] int64, place of node 0 of each row."""
    places: Tensor
    """[T] int64, place of each token, from the start on; one after the other."""
    sees: Tensor
    """[T, M] or [B, T, M] bool, which nodes each token sees; itself is one of them."""

    @property
    def absolute(self) -> Tensor:
        """[B, T] int64, places in the slot."""
        return self.starts[:, None] + self.places


def ancestors(
    # [..., T] int64
    parents: Tensor,
) -> Tensor:
    """[..., T, T] bool: each node sees itself and its ancestors; -1 is the parent of those that have none."""
    num_nodes = parents.shape[-1]
    index = torch.arange(num_nodes, device=parents.device)
    sees = (index == index[:, None]) | (index == parents[..., None])
    for _ in range((num_nodes - 1).bit_length()):
        # every step doubles the number of generations
        sees = (sees.float() @ sees.float()) > 0
    return sees


def tree_mask(tree: TreePlaces, length: int, dtype: torch.dtype) -> Tensor:
    """[B, 1, T, length], additive: 0 for keys before the tree and for the nodes that a token sees, -inf elsewhere."""
    num_tokens, num_nodes = tree.sees.shape[-2:]
    place = torch.arange(length, device=tree.starts.device) - tree.starts[:, None]
    is_node = ((place >= 0) & (place < num_nodes))[:, None, :]
    sees = tree.sees.expand(len(place), -1, -1)
    own = sees.gather(2, place.clamp(0, num_nodes - 1)[:, None, :].expand(-1, num_tokens, -1))
    visible = ((place < 0)[:, None, :] | (is_node & own))[:, None]
    return torch.zeros(visible.shape, dtype=dtype, device=place.device).masked_fill_(~visible, float("-inf"))
