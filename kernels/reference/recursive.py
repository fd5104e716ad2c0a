"""Recursive rejection, lossless for trees (SpecInfer, arXiv 2305.09781; distinct siblings: Sequoia, arXiv 2402.12374).

    at a node: R <- p;  for its children x_1, x_2, .. with laws S_1, S_2, .. (see tree_proposal):
        accept x_k with probability min(1, R(x_k) / S_k(x_k)) and go on there;  else R <- [R - S_k]+ normalised
    none accepted: emit from R

With one child a node it is probabilistic verification.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .several_drafts import normalised
from .tree_proposal import TreeProposal
from .tree_walk import Passes, Walked


def normalised_residual(left: Tensor, laws: Tensor) -> Tensor:
    """[R - S]+ normalised; R itself where rounding left nothing of it."""
    residual = (left - laws).clamp(min=0.0)
    return torch.where(residual.sum(dim=1, keepdim=True) > 0, normalised(residual), left)


def walk_recursively(
    tree: TreeProposal, passes: Passes, residual: Callable[[Tensor, Tensor], Tensor] = normalised_residual
) -> Walked:
    """Walk every request of a batch.

    A parent comes before its children, and siblings come in their order: one look at each draft token is enough.

    Args:
        tree: the round.
        passes: answers about draft tokens.
        residual: (R, S), [n, V] each -> what is left for the next sibling; another one is a mistake.
    """
    nodes = torch.zeros_like(tree.rows[:, 0])
    weights = tree.target_probs(torch.arange(len(nodes), device=nodes.device), nodes)
    for place in range(tree.width):
        requests = (tree.usable[:, place] & (tree.parents[:, place] == nodes)).nonzero()[:, 0]
        if len(requests) == 0:
            continue
        places = torch.full_like(requests, place)
        laws, tokens = tree.laws(requests, places), tree.token_ids[requests, place]
        left = weights[requests]
        accepted = passes(requests, places, at(left, tokens), at(laws, tokens))
        nodes[requests[accepted]] = place + 1
        weights[requests] = residual(left, laws)
        weights[requests[accepted]] = tree.target_probs(requests[accepted], places[accepted] + 1)
    return Walked(nodes, weights)


def at(rows: Tensor, token_ids: Tensor) -> Tensor:
    """[n, V] at [n] -> [n]."""
    return rows.gather(1, token_ids[:, None])[:, 0]
