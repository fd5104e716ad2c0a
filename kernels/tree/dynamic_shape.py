"""Trees whose nodes draft rows choose: best-first by the drafter's probability, as in EAGLE-2 (arXiv 2406.16858).

    value of a node = product of the draft probabilities along its path, at temperature 1 and before any cut
    level by level: every node of the beam has its `width` most probable tokens as children; of these the `width` with
    the largest values are the next beam
    tree = of all children of all levels the `num_nodes` with the largest values

A value never exceeds that of the node before it, so the chosen nodes are a tree. Rows alone decide: given the context,
which tokens are drafted is certain, and verification must treat them so (a `Draft` without logits). It is biased to
compare them with the probability that the drafter gave them, as if they had been drawn: certification rejects that.
Nothing is read on the host.

Shapes: R requests, P nodes of a beam, W children of each (the width), V_draft the drafter's vocabulary, N nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ..contract import NO_TOKEN, Sampling, SiblingDraws, Streams


class Beam(NamedTuple):
    """The nodes of a level whose children are looked at next, the largest value first."""

    token_ids: Tensor
    """[R, P] int64; NO_TOKEN for a place without a node, whose children are none either."""
    above: Tensor
    """[R, P] int64, place of each one's parent in the beam before; 0 for the children of the context."""


class ChosenTree(NamedTuple):
    """The trees of a round."""

    token_ids: Tensor
    """[R, N] int64, level by level; NO_TOKEN beyond `num_draft_tokens`."""
    parents: Tensor
    """[R, N] int64, as `Draft.parents`; -1 beyond too."""
    num_draft_tokens: Tensor
    """[R] int64, N unless the rows have fewer tokens."""
    places: Tensor
    """[R, N] int64, which node of all beams, counted one after the other, each one is; -1 if it was in none."""


def best_children(logits: Tensor, width: int, draw_children: Callable[..., Tensor]) -> tuple[Tensor, Tensor]:
    """The most probable tokens of rows, the lowest id first among equals, and how probable they are.

    Args:
        logits: [N, V_draft], any floating dtype.
        width: W.
        draw_children: of the core that drafts.

    Returns:
        ([N, W] int64 draft ids, NO_TOKEN where a row has no further token or no distribution; [N, W] float32 their log
        probabilities at temperature 1, 0 at most, -inf there).
    """
    num_rows, device = len(logits), logits.device
    nothing = torch.zeros(num_rows, dtype=torch.int64, device=device)
    certain = Sampling.same_for_all(num_rows, 0.0, 0, 1.0, 0.0, device)
    at_branch = torch.arange(width, device=device).repeat(num_rows, 1)
    # at temperature 0 no random number is read
    streams = Streams(nothing, nothing, nothing)
    token_ids = draw_children(logits, certain, streams, SiblingDraws.distinct, at_branch)
    chosen = logits.gather(1, token_ids.clamp_min(0)).float()
    logprobs = (chosen - logits.float().logsumexp(dim=1, keepdim=True)).clamp(max=0.0)
    return token_ids, torch.where(token_ids == NO_TOKEN, -torch.inf, logprobs)


class Candidates:
    """The children of all beams so far, from which the tree is chosen."""

    def __init__(self) -> None:
        # by level, [R, P * W] each
        self._token_ids: list[Tensor] = []
        self._values: list[Tensor] = []
        self._parents: list[Tensor] = []
        self._places: list[Tensor] = []
        self._beam: Tensor | None = None
        """[R, P] int64, number among all candidates of each node of the beam; None before the first, the context."""
        self._num_in_beams = 0

    def add(self, token_ids: Tensor, logprobs: Tensor) -> None:
        """Take in the children of the beam.

        Args:
            token_ids: [R, P, W] int64, those of the context first, with P = 1; NO_TOKEN where there is none.
            logprobs: [R, P, W] float32, 0 at most; NaN counts as -inf.
        """
        parents = token_ids.new_full((len(token_ids), 1), -1) if self._beam is None else self._beam
        if self._beam is not None:
            values = torch.cat(self._values, dim=1).gather(1, self._beam)
            logprobs = logprobs + values[:, :, None]
        is_node = (token_ids != NO_TOKEN) & (logprobs > -torch.inf)
        self._token_ids.append(torch.where(is_node, token_ids, NO_TOKEN).flatten(1))
        self._values.append(torch.where(is_node, logprobs, -torch.inf).flatten(1))
        self._parents.append(parents[:, :, None].expand_as(token_ids).flatten(1))
        self._places.append(torch.full_like(self._parents[-1], -1))

    def next_beam(self, width: int) -> Beam:
        """The nodes with the largest values among the children that were added last."""
        token_ids, values = self._token_ids[-1], self._values[-1]
        best = values.sort(dim=1, descending=True, stable=True).indices[:, :width]
        num_parents = 1 if self._beam is None else self._beam.shape[1]
        places = self._num_in_beams + torch.arange(best.shape[1], device=best.device)
        self._places[-1].scatter_(1, best, places.expand_as(best))
        self._num_in_beams += best.shape[1]
        self._beam = best + sum(level.shape[1] for level in self._values[:-1])
        return Beam(token_ids.gather(1, best), best // (values.shape[1] // num_parents))

    def best(self, num_nodes: int) -> ChosenTree:
        """The tree of so many nodes, fewer where there are no more."""
        token_ids, values, parents, places = (
            torch.cat(each, dim=1) for each in (self._token_ids, self._values, self._parents, self._places)
        )
        # among equal values the first wins, which is never a child of another
        order = values.sort(dim=1, descending=True, stable=True).indices[:, :num_nodes]
        is_kept = values.gather(1, order) > -torch.inf
        no_node = values.shape[1]
        order = torch.where(is_kept, order, no_node).sort(dim=1).values
        index, is_node = order.clamp(max=no_node - 1), order < no_node
        numbers = torch.arange(order.shape[1], device=order.device).expand_as(order)
        number_of = order.new_full((len(order), no_node + 1), -1).scatter_(1, order, numbers)
        above = parents.gather(1, index)
        above = torch.where(is_node & (above >= 0), number_of.gather(1, above.clamp_min(0)), -1)
        return ChosenTree(
            torch.where(is_node, token_ids.gather(1, index), NO_TOKEN),
            above,
            is_kept.sum(dim=1),
            torch.where(is_node, places.gather(1, index), -1),
        )
