"""Traversal verification, lossless for trees (arXiv 2505.12398, algorithm 2).

    a of the context is 1; of a child x of u with law S (see tree_proposal):  a = min(1, a_u P_u(x) / S(x))
    take the first leaf v of the tree, children in their order:
        with probability a_v (the context: 1) accept the path to v and emit from P_v, which is p there at first
        else, u being its parent: delete v;  R = [a_u P_u - S]+,  Z = sum R,
             a_u <- Z / (Z + 1 - a_u) (0/0 := 1),  P_u <- R / Z,  S <- the law of the next child

Leaves come first, so that a path is accepted as a whole or shortened. With one child a node it is block verification.
A public implementation updates a_u by min(1, Z / (1 - S(x))) instead, which is not lossless.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .recursive import at
from .tree_proposal import TreeProposal
from .tree_walk import Passes, Walked

Update = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(Z, a_u, S(x) of the deleted child) -> the new a_u, all [n] float64."""


def updated_chance(mass: Tensor, chance: Tensor, deleted_prob: Tensor) -> Tensor:
    """Z / (Z + 1 - a_u); 1 where both are 0."""
    whole = mass + (1.0 - chance)
    return torch.where(whole > 0, mass / torch.where(whole > 0, whole, 1.0), 1.0)


def walk_by_traversal(tree: TreeProposal, passes: Passes, update: Update = updated_chance) -> Walked:
    """Walk every request of a batch, depth first, each with its own stack of the nodes above it.

    Args:
        tree: the round.
        passes: answers about draft tokens.
        update: of a node's chance when a child has failed; another one is a mistake.
    """
    num_requests, depth = len(tree.rows), int(tree.depths.max()) if tree.depths.numel() else 0
    every = torch.arange(num_requests, device=tree.rows.device)
    first, following = _links(tree)
    stack = torch.zeros(num_requests, depth + 1, dtype=torch.long, device=every.device)
    chances = torch.ones(num_requests, depth + 1, dtype=torch.float64, device=every.device)
    laws_left = tree.target_probs(every, stack[:, 0])[:, None].repeat(1, depth + 1, 1)
    levels, is_done = torch.zeros_like(every), torch.zeros_like(every, dtype=torch.bool)
    while not bool(is_done.all()):
        requests = (~is_done).nonzero()[:, 0]
        level = levels[requests]
        nodes = stack[requests, level]
        child = first[requests, nodes]
        down = child >= 0
        if bool(down.any()):
            at_request, at_level, place = requests[down], level[down], child[down]
            token = tree.token_ids[at_request, place]
            above = chances[at_request, at_level] * at(laws_left[at_request, at_level], token)
            law = at(tree.laws(at_request, place), token)
            levels[at_request] = at_level + 1
            stack[at_request, at_level + 1] = place + 1
            chances[at_request, at_level + 1] = (above / law).clamp(max=1.0)
            laws_left[at_request, at_level + 1] = tree.target_probs(at_request, place + 1)
        requests, level, nodes = requests[~down], level[~down], nodes[~down]
        accepted = level == 0
        asked = (~accepted).nonzero()[:, 0]
        if len(asked):
            chance = chances[requests[asked], level[asked]]
            accepted[asked] = passes(requests[asked], nodes[asked] - 1, chance, torch.ones_like(chance))
        is_done[requests[accepted]] = True
        requests, above_level, place = requests[~accepted], level[~accepted] - 1, nodes[~accepted] - 1
        if len(requests) == 0:
            continue
        parents, law = tree.parents[requests, place], tree.laws(requests, place)
        chance, left = chances[requests, above_level], laws_left[requests, above_level]
        residual = (chance[:, None] * left - law).clamp(min=0.0)
        mass = residual.sum(dim=1)
        chances[requests, above_level] = update(mass, chance, at(law, tree.token_ids[requests, place]))
        has_mass = (mass > 0)[:, None]
        laws_left[requests, above_level] = torch.where(has_mass, residual / mass.clamp(min=1e-300)[:, None], left)
        first[requests, parents] = following[requests, place]
        levels[requests] = above_level
    return Walked(stack[every, levels], laws_left[every, levels])


def _links(tree: TreeProposal) -> tuple[Tensor, Tensor]:
    """First usable child of each node, [R, K + 1], and next usable sibling of each draft token, [R, K]; -1 if none."""
    num_requests, width = tree.token_ids.shape
    first = torch.full((num_requests, width + 1), -1, device=tree.rows.device)
    following = torch.full((num_requests, width), -1, device=tree.rows.device)
    every = torch.arange(num_requests, device=tree.rows.device)
    for place in reversed(range(width)):
        usable, parents = tree.usable[:, place], tree.parents[:, place]
        following[:, place] = first[every, parents]
        first[every, parents] = torch.where(usable, place, first[every, parents])
    return first, following
