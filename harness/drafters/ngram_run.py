"""Prompt lookup: the tokens that followed an earlier occurrence of the sequence's own suffix.

Source: prompt lookup decoding (A. Saxena, 2023), as in transformers' and vLLM's n-gram speculators. The proposal is
one-hot. A row whose suffix has not occurred before gets no draft tokens in that round. All rows are looked up at once,
on the device that holds their tokens.

A tree has the continuations of several occurrences, merged where they begin alike: those of the first one, then what
each further one adds, until the tree is full.

Shapes: B rows, C capacity of a row, K draft tokens; of a tree N nodes of depth D at most, W occurrences.
"""

from __future__ import annotations

import torch
from torch import Tensor

from harness.drafters.dynamic_tree import DynamicTreeShape
from harness.drafters.protocol import Batch, StatelessDrafter
from kernels.contract import NO_TOKEN, Draft


def lookup(
    # [B, C] int64
    token_ids: Tensor,
    # [B] int64
    lengths: Tensor,
    longest: int,
    shortest: int,
    num_tokens: int,
    num_matches: int = 1,
    earliest: bool = False,
) -> tuple[Tensor, Tensor]:
    """The tokens after earlier occurrences of the end of each row: those of the longest suffix first.

    Args:
        token_ids: what a row holds beyond its length is not looked at.
        lengths: number of tokens of each row, at least 1.
        longest, shortest: lengths of the suffixes that are looked up.
        num_tokens: K.
        num_matches: W.
        earliest: of occurrences of one length the earliest goes first, as in vLLM; else the most recent.

    Returns:
        ([B, W, K] int64 token ids, [B, W] int64 number of them that exist; 0 where there is no further occurrence).
    """
    capacity = token_ids.shape[1]
    places = torch.arange(capacity, device=token_ids.device)
    last = lengths.unsqueeze(1) - 1
    # [B, C]: how many tokens up to each place, backwards, equal those up to the end
    matched = torch.zeros_like(token_ids)
    unbroken = places < last
    for back in range(longest):
        suffix = token_ids.gather(1, (last - back).clamp_min(0))
        at_place = token_ids.gather(1, (places - back).clamp_min(0).expand_as(token_ids))
        unbroken = unbroken & (at_place == suffix) & (places >= back)
        matched += unbroken
    ordered = capacity - 1 - places if earliest else places
    score = torch.where(matched >= shortest, matched * capacity + ordered, -1)
    best = score.amax(dim=1, keepdim=True) if num_matches == 1 else score.topk(num_matches, dim=1).values
    place = best % capacity
    first = torch.where(best >= 0, (capacity - 1 - place if earliest else place) + 1, lengths.unsqueeze(1))
    count = (lengths.unsqueeze(1) - first).clamp(max=num_tokens)
    wanted = first.unsqueeze(2) + torch.arange(num_tokens, device=token_ids.device)
    found = token_ids.gather(1, wanted.clamp(max=capacity - 1).flatten(1))
    return found.view(wanted.shape), count


def merged(
    # [B, W, D] int64
    continuations: Tensor,
    # [B, W] int64
    counts: Tensor,
    num_nodes: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """A tree of continuations, in which those that begin alike share the nodes of their beginning.

    Args:
        continuations: the most important one first.
        counts: tokens of each that exist.
        num_nodes: N.

    Returns:
        ([B, N] int64 token ids, NO_TOKEN beyond those there are; [B, N] int64 their parents as `Draft.parents`; [B]
        int64 number of nodes).
    """
    return merged_with_nodes(continuations, counts, num_nodes)[:3]


def merged_with_nodes(continuations: Tensor, counts: Tensor, num_nodes: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The same, with [B, W, D] int64: the node of each token of each continuation, where the tree has room for it."""
    num_rows, num_matches, depth = continuations.shape
    exists = torch.arange(depth, device=counts.device) < counts[:, :, None]
    equal = (continuations[:, :, None] == continuations[:, None]) & exists[:, :, None] & exists[:, None]
    # [B, W, D], the first continuation with the same tokens up to there
    owner = equal.long().cumprod(dim=3).argmax(dim=2)
    is_new = exists & (owner == torch.arange(num_matches, device=counts.device)[:, None])
    number = is_new.flatten(1).long().cumsum(dim=1) - 1
    is_kept = is_new.flatten(1) & (number < num_nodes)
    above = owner[:, :, :-1] * depth + torch.arange(depth - 1, device=counts.device)
    parents = torch.full_like(owner, -1)
    parents[:, :, 1:] = number.gather(1, above.flatten(1)).view(above.shape)
    # one place more takes what is not kept
    places = torch.where(is_kept, number, num_nodes)
    found = continuations.new_full((2, num_rows, num_nodes + 1), NO_TOKEN)
    found[0].scatter_(1, places, continuations.flatten(1))
    found[1].scatter_(1, places, parents.flatten(1))
    num_found = is_kept.sum(dim=1)
    is_node = torch.arange(num_nodes, device=counts.device) < num_found[:, None]
    token_ids, parents = torch.where(is_node, found[:, :, :-1], NO_TOKEN)
    nodes = number.gather(1, (owner * depth + torch.arange(depth, device=counts.device)).flatten(1)).view(owner.shape)
    return token_ids, parents, num_found, nodes


class NgramDrafter(StatelessDrafter):
    """Looks the proposal up in the request's own sequence, prompt included."""

    def __init__(self, longest: int, shortest: int, earliest: bool = False) -> None:
        self.longest = longest
        self.shortest = shortest
        self.earliest = earliest

    def propose(self, batch: Batch) -> Draft:
        found, counts = self._lookup(batch, batch.num_speculative_tokens, 1)
        return Draft(found[:, 0], counts[:, 0])

    def _lookup(self, batch: Batch, num_tokens: int, num_matches: int) -> tuple[Tensor, Tensor]:
        suffixes = self.longest, self.shortest
        return lookup(batch.token_ids, batch.lengths, *suffixes, num_tokens, num_matches, self.earliest)


class NgramTreeDrafter(NgramDrafter):
    """The same with the continuations of several occurrences, as many as the tree is wide."""

    def __init__(self, longest: int, shortest: int, tree: DynamicTreeShape, earliest: bool = False) -> None:
        super().__init__(longest, shortest, earliest)
        self.tree = tree

    def propose(self, batch: Batch) -> Draft:
        bounds = self.tree.bounds
        # a slot that holds fewer tokens has fewer occurrences
        num_matches = min(bounds.width, batch.token_ids.shape[1])
        found, counts = self._lookup(batch, bounds.depth, num_matches)
        token_ids, parents, num_nodes = merged(found, counts, bounds.num_nodes)
        return Draft(token_ids, num_nodes, parents=parents)

    def keep_path(self, rows: slice | Tensor, starts: Tensor, path: Tensor) -> None:
        """Nothing is kept."""
