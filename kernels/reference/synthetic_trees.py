"""Synthetic acceptance of trees: accepts at given rates, whatever the tokens (chains: kernels.methods.synthetic).

At a node at depth d that the walk has reached, accept child r (0, 1, .. in the order of the draft) with
probability a_{d,r}, and stop with what is left of 1; the children of a node exclude each other. One uniform number u
for each node reached, that of a chain's draft token at the same position:

    accept child r    where a_{d,0} + .. + a_{d,r-1} <= u < a_{d,0} + .. + a_{d,r}

With one child a node and a_{d,0} = a_{d+1} / a_d it accepts what it accepts of a chain. The path follows from u and the
parents before any row is read, so that only the row of the last accepted node matters.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..contract import Streams
from ..random.streams import Purpose, uniform
from .tree_proposal import TreeProposal
from .tree_walk import Walked


def child_ranks(drafted: Tensor, parents: Tensor) -> Tensor:
    """[R, K] bool draft tokens, [R, K] int64 their parents -> [R, K] int64, siblings before each that are drafted."""
    before = torch.ones(parents.shape[1], parents.shape[1], dtype=torch.bool, device=parents.device).tril(-1)
    return ((parents[:, :, None] == parents[:, None, :]) & drafted[:, None, :] & before).sum(dim=2)


def walk_synthetically(tree: TreeProposal, thresholds: list[list[float]], streams: Streams) -> Walked:
    """Walk every request of a batch.

    Args:
        tree: the round, `usable` whatever the tokens are.
        thresholds: kernels.methods.synthetic.Synthetic.tree_thresholds.
        streams: fields [R].
    """
    every = torch.arange(len(tree.rows), device=tree.rows.device)
    nodes, walks = torch.zeros_like(every), torch.ones_like(every, dtype=torch.bool)
    ranks = child_ranks(tree.drafted, tree.parents)
    for depth, level in enumerate(thresholds[: tree.width]):
        sums = torch.tensor(level, dtype=torch.float64, device=every.device)
        drawn = uniform(streams.seeds, Purpose.accept, streams.positions + depth, streams.rounds)
        rank = (drawn[:, None] >= sums).sum(dim=1)
        is_chosen = tree.usable & (tree.parents == nodes[:, None]) & (ranks == rank[:, None])
        walks = walks & is_chosen.any(dim=1) & (rank < len(level))
        nodes = torch.where(walks, is_chosen.long().argmax(dim=1) + 1, nodes)
    return Walked(nodes, tree.target_probs(every, nodes))
