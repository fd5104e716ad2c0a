"""K-SEQ of SpecTr, lossless for trees whose siblings are independent (Sun et al., arXiv 2310.15141, algorithm 3).

    at a node with n children: b(rho) = sum_x min(q(x), p(x) / rho),  rho in [1, n] with 1 - (1 - b)^n = rho b
        accept the first child x with u rho q(x) < p(x) and go on there
    none accepted: emit from [p - rho q]+ normalised

At any rho with 1 - (1 - b)^n <= rho b the rule is lossless with p - min(q, p / rho) (1 - (1 - b)^n) / b for the last
line, which is never negative then; at the root, where most is accepted, it is [p - rho q]+. A rho that is off by a
share s of itself thus changes the output's law by at most s. A larger one accepts less; a smaller one would need a
negative residual, which is cut at 0.
With one child a node it is probabilistic verification. At temperature 0 the target's argmax is accepted.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .recursive import at, normalised_residual
from .several_drafts import kseq_ratio
from .tree_proposal import TreeProposal
from .tree_walk import Passes, Walked


def walk_by_kseq(
    tree: TreeProposal, passes: Passes, residual_ratio: Callable[[Tensor], Tensor] = lambda rho: rho
) -> Walked:
    """Walk every request of a batch; all children of a node have one law.

    Args:
        tree: the round.
        passes: answers about draft tokens.
        residual_ratio: [n] rho -> [n], what takes its place in the residual; another one is a mistake.
    """
    nodes = torch.zeros_like(tree.rows[:, 0])
    every = torch.arange(len(nodes), device=nodes.device)
    weights = tree.target_probs(every, nodes)
    for place in range(tree.width):
        requests = (tree.usable[:, place] & (tree.parents[:, place] == nodes)).nonzero()[:, 0]
        if len(requests) == 0:
            continue
        places = torch.full_like(requests, place)
        laws, tokens = tree.laws(requests, places), tree.token_ids[requests, place]
        certain = tree.one_hot[requests]
        target = tree.target_probs(requests, nodes[requests])
        parents = tree.parents[requests]
        children = (tree.usable[requests] & (parents == parents[:, place, None])).sum(dim=1)
        rho, _ = kseq_ratio(target, laws, torch.where(certain, 1, children))
        left = torch.where(certain[:, None], weights[requests], target)
        accepted = passes(requests, places, at(left, tokens), rho * at(laws, tokens))
        nodes[requests[accepted]] = place + 1
        weights[requests] = normalised_residual(left, residual_ratio(rho)[:, None] * laws)
        weights[requests[accepted]] = tree.target_probs(requests[accepted], places[accepted] + 1)
    return Walked(nodes, weights)
