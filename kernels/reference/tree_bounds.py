"""What any lossless rule could accept at each node that a walk over a tree of drafts came to.

A node with n children is a position with n drafts (optimal_acceptance): independent, distinct, or certain ones, of
which a rule accepts one with the probability that the target has of them. It is a bound per position: a rule that
decides about several together (traversal) is not bound by their product.

Shapes: R requests, K the largest number of draft tokens of a request, V the target's vocabulary, n nodes at hand.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..contract import Draft, Sampling
from ..methods import SiblingDraws
from .masses import places_per_chunk
from .optimal_acceptance import MAX_DISTINCT, distinct_bound, independent_bound
from .target_rows import present_slots
from .tree_proposal import TreeProposal, propose_trees
from .truncation import sampling_rows


def tree_bounds(target_logits: Tensor, draft: Draft, sampling: Sampling, path: Tensor) -> Tensor:
    """The bound of each position of a round, given the accepted nodes before it.

    Args:
        target_logits: [N, V], any floating dtype, packed or padded as for `verify`.
        draft: the proposals, without masks; chains have no parents.
        sampling: fields [R].
        path: [R, K] int64, the accepted nodes, root first; -1 beyond (VerificationResult.path).

    Returns:
        [R, K] float64; 0 where the walk did not come or the node has no usable child, and NaN where more than
        MAX_DISTINCT of its children were drawn without replacement, for which no bound is computed.
    """
    packed = present_slots(target_logits, draft)
    if packed is not None:
        target_logits, left, present = packed
        found = tree_bounds(target_logits, left, sampling_rows(sampling, present), path[present])
        return found.new_zeros(path.shape).index_copy_(0, present, found)
    tree = propose_trees(target_logits, draft, sampling)
    bounds = torch.zeros(path.shape, dtype=torch.float64, device=path.device)
    came = torch.cat([torch.zeros_like(path[:, :1]), path[:, :-1] + 1], dim=1)
    came[:, 1:] = torch.where(path[:, :-1] >= 0, came[:, 1:], -1)
    children = tree.usable[:, None] & (tree.parents[:, None] == came[:, :, None])
    places = children.any(dim=2).nonzero()
    for chunk in places.split(places_per_chunk(target_logits)) if len(places) else ():
        requests, positions = chunk.unbind(dim=1)
        bounds[requests, positions] = _of_nodes(
            tree, requests, came[requests, positions], children[requests, positions]
        )
    return bounds


def _of_nodes(tree: TreeProposal, requests: Tensor, nodes: Tensor, children: Tensor) -> Tensor:
    """[n] of some nodes with children, [n, K] bool."""
    target_probs, firsts = tree.target_probs(requests, nodes), children.int().argmax(dim=1)
    # several one-hot children may be the same token
    tokens = torch.zeros_like(target_probs).scatter_add_(1, tree.token_ids[requests], children.double())
    found = torch.where(tokens > 0, target_probs, 0.0).sum(dim=1).clamp(max=1.0)
    numbers = torch.where(tree.one_hot[requests], 0, children.sum(dim=1))
    for number in sorted(set(numbers.tolist()) - {0}):
        which = (numbers == number).nonzero()[:, 0]
        rows = target_probs[which], tree.laws(requests[which], firsts[which])
        if tree.siblings is SiblingDraws.independent:
            found[which] = independent_bound(*rows, number)[:, -1]
        elif number <= MAX_DISTINCT:
            found[which] = distinct_bound(*rows, number)[:, -1]
        else:
            found[which] = torch.nan
    return found
