"""Rounds of trees of drafts, whose rows are as language models give them (harness.checks.agreement.rows).

All children of a node are drawn together, from one row that is near the node's target row.

Shapes: R requests, K draft tokens of a tree at most, V the vocabulary, N nodes with children, of all requests, n
children of a node at most.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from harness.checks.agreement.round_inputs import ChildDraws, RoundInputs, streams_at
from harness.checks.agreement.rows import DRAFT_NOISE, RoundShape, sampling_of, streams_of, target_rows_of
from harness.config.tree import Tree, branching
from kernels.contract import NO_TOKEN, Draft, RowStats, Sampling, SiblingDraws
from kernels.core import Core
from kernels.reference.tree_shape import branches, depths, first_siblings
from kernels.reference.truncation import sampling_rows

FIXED = (branching(2, 2),)
RAGGED = (branching(2, 2), branching(1, 1), (), (-1, 0, -1, 0, 1), (-1, -1, -1))
"""In one batch: none among them, one of depth 3, and one of depth 1."""


@dataclass(frozen=True)
class DraftedTrees:
    """A round of trees, and the draws that its drafts came from."""

    inputs: RoundInputs
    drafts: ChildDraws


@dataclass(frozen=True)
class Families:
    """The nodes with children."""

    requests: Tensor
    """[N] int64."""
    first: Tensor
    """[N] int64, place of the first child."""
    depth: Tensor
    """[N] int64, of the node; the context's is 0."""
    branches: Tensor
    """[N, n] int64, of the children in order; 0 beyond."""
    child: Tensor
    """[R, K] int64, each draft token's number among its siblings."""
    family: Tensor
    """[R, K] int64, the number of its node among the N; 0 where nothing is drafted."""


def families_of(parents: Tensor, num_draft_tokens: Tensor) -> Families:
    """The nodes with children of trees, [R, K] parents of [R] draft tokens."""
    width, first = parents.shape[1], first_siblings(parents)
    places = torch.arange(width, device=parents.device)
    drafted = places < num_draft_tokens[:, None]
    begins = drafted & (first == places)
    requests, starts = begins.nonzero(as_tuple=True)
    number = (begins.flatten().cumsum(0) - 1).view_as(begins)
    family = torch.where(drafted, number.gather(1, first), 0)
    levels = depths(parents)
    is_earlier = (first[:, :, None] == first[:, None, :]) & (places < places[:, None])
    child = torch.where(drafted, (is_earlier & drafted[:, None, :]).sum(dim=2), 0)
    of_child = torch.zeros(len(requests), int(child.max()) + 1, dtype=torch.long, device=parents.device)
    of_child[family[drafted], child[drafted]] = branches(levels)[drafted]
    return Families(requests, starts, levels[requests, starts + 1] - 1, of_child, child, family)


def drafted_trees(
    shape: RoundShape, trees: tuple[Tree, ...], siblings: SiblingDraws, core: Core, generator: torch.Generator
) -> DraftedTrees:
    """A round whose trees a core has drawn, with the statistics of their rows kept beside the cache.

    Args:
        shape: of the round; one-hot drafts are the most probable tokens of their rows. Its number of draft tokens is
            that of the largest tree.
        trees: of the requests, in turn.
        siblings: how the children of a node are drawn; distinct where they are one-hot.
        core: draws the drafts.
        generator: of logits and streams; its device is theirs.
    """
    device, requests, width = generator.device, shape.num_requests, shape.num_draft_tokens
    index = torch.arange(requests, device=device) % len(trees)
    parents = torch.tensor([[*tree, *[-1] * (width - len(tree))] for tree in trees], device=device)[index]
    counts = torch.tensor([len(tree) for tree in trees], device=device)[index]
    target = target_rows_of(shape, generator)
    noise = torch.empty_like(target[:, :width]).normal_(std=DRAFT_NOISE, generator=generator)
    cache = noise.add_(target[torch.arange(requests, device=device)[:, None], parents + 1]).to(shape.dtype)
    streams, sampling = streams_of(requests, generator), sampling_of(shape, requests, device)
    families = families_of(parents, counts)
    here = streams_at(streams, families.requests)
    given: Sampling = sampling_rows(sampling, families.requests)
    if shape.one_hot:
        given = Sampling.same_for_all(len(families.requests), 0.0, 0, 1.0, 0.0, device)
    drafts = ChildDraws(
        cache[families.requests, families.first],
        given,
        replace(here, positions=here.positions + families.depth),
        siblings,
        families.branches,
    )
    kept = RowStats.empty(len(families.requests), device=device)
    drawn = drafts.drawn_by(core, kept)
    present = torch.arange(width + 1, device=device) <= counts[:, None]
    token_ids = drawn[families.family, families.child]
    for place in range(width):
        # nothing follows a child that there is none of
        above = token_ids.gather(1, parents[:, place, None].clamp(min=0))[:, 0]
        is_below = (parents[:, place] < 0) | (above != NO_TOKEN)
        token_ids[:, place] = torch.where(is_below & present[:, place + 1], token_ids[:, place], NO_TOKEN)
    stats = RowStats.empty(requests, width, device=device)
    for name, field in vars(kept).items():
        getattr(stats, name)[families.requests, families.first] = field
    draft = Draft(
        token_ids,
        counts,
        logits=None if shape.one_hot else cache,
        row_stats=None if shape.one_hot else stats,
        parents=parents,
        siblings=siblings,
    )
    return DraftedTrees(RoundInputs(target.to(shape.dtype)[present], draft, sampling, streams), drafts)
