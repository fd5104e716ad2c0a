"""Verification of trees: a round's draft tokens become output tokens, every method for trees behind one call.

Random numbers are addressed as those of chains, by (purpose, absolute position, round), and among the nodes of one
position by the branch of a node (tree_shape.branches), which is 0 in a chain.

Shapes: R requests, K the largest number of draft tokens of a request, V the target's vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from ..contract import Draft, Sampling, Streams, Verification, VerificationResult
from ..random.streams import Purpose, uniform
from .choose import choose
from .proposal import leading
from .tree_proposal import TreeProposal, propose_trees
from .tree_shape import branches
from .tree_walk import Passes, Walked


def uniform_passes(tree: TreeProposal, streams: Streams, shares_noise: bool = False) -> Passes:
    """Answers with the acceptance uniform of each draft token; sharing those of one depth is a mistake."""
    at_branch = branches(tree.depths)
    if shares_noise:
        at_branch = torch.zeros_like(at_branch)

    def passes(requests: Tensor, places: Tensor, numerators: Tensor, denominators: Tensor) -> Tensor:
        positions = streams.positions[requests] + tree.depths[requests, places + 1] - 1
        draws = at_branch[requests, places]
        drawn = uniform(streams.seeds[requests], Purpose.accept, positions, streams.rounds[requests], draws)
        return drawn * denominators < numerators

    return passes


def verify_trees(
    target_logits: Tensor,
    draft: Draft,
    sampling: Sampling,
    verification: Verification,
    streams: Streams,
    walk_by: Callable[[TreeProposal, Passes], Walked] | None = None,
    shares_noise: bool = False,
) -> VerificationResult:
    """See kernels.reference.verify; masks are applied and padded slots left out before.

    Args:
        walk_by: another walk than the method's, for controls.
        shares_noise: see `uniform_passes`.
    """
    traits = verification.traits
    reads = draft if traits.reads_draft else replace(draft, logits=None)
    tree = propose_trees(target_logits, reads, sampling)
    if traits.ignores_tokens:
        inside = (draft.token_ids >= 0) & (draft.token_ids < target_logits.shape[1])
        tree = replace(tree, usable=tree.drafted & inside)
    passes = uniform_passes(tree, streams, shares_noise)
    walked = verification.rule.walk(tree, passes, streams) if walk_by is None else walk_by(tree, passes)
    every = torch.arange(len(walked.nodes), device=walked.nodes.device)
    num_accepted = tree.depths[every, walked.nodes]
    follows = tree.drafted & (tree.parents == walked.nodes[:, None])
    # a synthetic walk rejects nothing: what follows is drawn as behind a leaf
    rejects = follows.any(dim=1) & (not traits.ignores_tokens)
    purposes = torch.where(rejects, int(Purpose.residual), int(Purpose.bonus))
    uniforms = uniform(streams.seeds, purposes, streams.positions + num_accepted, streams.rounds)
    last = choose(walked.weights, uniforms)
    is_cut = (follows & ~tree.usable).any(dim=1)
    invalid = is_cut | tree.target.invalid[tree.rows[every, walked.nodes]]
    path = _paths(tree, walked.nodes, num_accepted)
    accepted = leading(num_accepted, tree.width)
    token_ids = torch.full((len(every), tree.width + 1), -1, dtype=torch.long, device=every.device)
    token_ids[:, :-1] = torch.where(accepted, tree.token_ids.gather(1, path.clamp(min=0)), -1)
    token_ids.scatter_(1, num_accepted[:, None], last[:, None])
    return VerificationResult(token_ids, num_accepted, invalid, path=path)


def _paths(tree: TreeProposal, nodes: Tensor, num_accepted: Tensor) -> Tensor:
    """[R, K] int64, index of each accepted draft token, root first; -1 beyond."""
    path = torch.full_like(tree.token_ids, -1)
    for depth in range(tree.width, 0, -1):
        reached = (num_accepted >= depth).nonzero()[:, 0]
        path[reached, depth - 1] = nodes[reached] - 1
        nodes = nodes.clone()
        nodes[reached] = tree.parents[reached, nodes[reached] - 1]
    return path
