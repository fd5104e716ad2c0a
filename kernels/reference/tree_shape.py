"""The shape of a tree of drafts: depth and place of its nodes, and how its random numbers are addressed.

Shapes: R requests, K the largest number of draft tokens of a request. Node 0 is the context, node i + 1 draft token i.
"""

from __future__ import annotations

import torch
from torch import Tensor


def check_parents(parents: Tensor, token_ids: Tensor) -> None:
    """Raises ValueError unless every draft token follows the context or a draft token before it."""
    if parents.shape != token_ids.shape or parents.dtype != torch.int64:
        raise ValueError(
            f"draft.parents must be {list(token_ids.shape)} int64, one for each draft token; found "
            f"{list(parents.shape)} {parents.dtype}"
        )
    before = torch.arange(parents.shape[1], device=parents.device)
    wrong = ((parents < -1) | (parents >= before)).nonzero().tolist()
    if wrong:
        request, place = wrong[0]
        raise ValueError(
            f"draft.parents must be smaller than a token's own index, -1 for children of the context; found "
            f"{int(parents[request, place])} for token {place} of request {request}"
        )


def chain_parents(num_requests: int, width: int, device: torch.device | None = None) -> Tensor:
    """[R, K] int64, the parents of chains."""
    return (torch.arange(width, device=device) - 1).expand(num_requests, width)


def depths(parents: Tensor) -> Tensor:
    """[R, K] int64 -> [R, K + 1] int64, depth of each node; 0 is the context's."""
    found = [torch.zeros_like(parents[:, 0]) if parents.shape[1] else parents.new_zeros(len(parents))]
    for column in parents.unbind(dim=1):
        found.append(torch.stack(found, dim=1).gather(1, column[:, None] + 1)[:, 0] + 1)
    return torch.stack(found, dim=1)


def branches(node_depths: Tensor) -> Tensor:
    """[R, K + 1] depths -> [R, K] int64, what tells draft tokens of one depth apart.

    It is the place of a token less that of a chain's token at its depth: 0 in a chain, whose random numbers are thereby
    those of a draft without parents.
    """
    return torch.arange(node_depths.shape[1] - 1, device=node_depths.device) - (node_depths[:, 1:] - 1)


def first_siblings(parents: Tensor) -> Tensor:
    """[R, K] int64, the first draft token with the same parent; it may be the token itself."""
    return (parents[:, :, None] == parents[:, None, :]).long().argmax(dim=2)
