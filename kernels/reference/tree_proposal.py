"""A round's trees of drafts laid beside the target's distributions: everything a rule for trees reads.

Shapes: R requests, K the largest number of draft tokens of a request, V the target's vocabulary, n nodes at hand.
Node 0 is the context, node i + 1 draft token i; target row i belongs to node i.

The children of a node are drawn in order from one row of the draft, which lies at the first of them. The law of each,
given those before it, is

    independent     that row
    distinct        that row without the siblings before it, normalised
    one-hot         the token itself: no cached logits, or temperature 0

A token that cannot be verified (an id outside the vocabulary, a target row or a draft row without a distribution, a
token that its law cannot have produced, as behind siblings that leave less than SMALLEST_REST of their row) is left out
of the tree with all that follows it. NO_TOKEN marks a place where
nothing was drafted, because the row had no further token: it is no node, and no fault.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..contract import NO_TOKEN, Draft, Sampling
from ..methods import SMALLEST_REST, SiblingDraws
from .proposal import leading, on_target_vocab, to_draft_ids
from .several_drafts import normalised
from .target_rows import target_rows
from .token_mask import allowed_draft_logits
from .tree_shape import chain_parents, depths, first_siblings
from .truncation import Processed, processed, sampling_rows


@dataclass(frozen=True)
class TreeProposal:
    """One round of every request in the batch."""

    target: Processed
    """Processed target rows, packed or padded."""
    rows: Tensor
    """[R, K + 1] int64, row of `target` of each node."""
    token_ids: Tensor
    """[R, K] int64, the draft tokens; 0 where there is none inside the vocabulary."""
    parents: Tensor
    """[R, K] int64, node that each draft token follows, 0 .. K."""
    depths: Tensor
    """[R, K + 1] int64."""
    drafted: Tensor
    """[R, K] bool, there is a draft token."""
    usable: Tensor
    """[R, K] bool, it and all before it on its path can be verified."""
    one_hot: Tensor
    """[R] bool."""
    siblings: SiblingDraws
    draft: Processed | None
    """Processed draft rows; None when every proposal is one-hot."""
    draft_rows: Tensor
    """[R, K] int64, row of `draft` from which each token was drawn."""
    draft_to_target: Tensor | None

    @property
    def width(self) -> int:
        """K."""
        return self.token_ids.shape[1]

    def target_probs(self, requests: Tensor, nodes: Tensor) -> Tensor:
        """[n, V] float64."""
        return self.target.probs(self.rows[requests, nodes])

    def laws(self, requests: Tensor, places: Tensor) -> Tensor:
        """[n, V] float64, the law of draft tokens (`places` in 0 .. K - 1), given the siblings before them."""
        size = self.target.logits.shape[1]
        token_ids = self.token_ids[requests, places]
        found = torch.nn.functional.one_hot(token_ids, size).double()
        drawn = (~self.one_hot[requests]).nonzero()[:, 0]
        if self.draft is None or len(drawn) == 0:
            return found
        requests, places = requests[drawn], places[drawn]
        rows = self.draft.probs(self.draft_rows[requests, places])
        rows = on_target_vocab(rows, self.draft_to_target, size)
        if self.siblings is SiblingDraws.distinct:
            earlier = self.earlier_siblings(requests, places)
            has_earlier = earlier.any(dim=1).nonzero()[:, 0]
            if len(has_earlier):
                rows[has_earlier] = normalised(
                    self._left(rows[has_earlier], requests[has_earlier], earlier[has_earlier])
                )
        found[drawn] = rows
        return found

    def rests(self, requests: Tensor, earlier: Tensor, place: int) -> Tensor:
        """[n] float64, what some siblings, [n, K] bool, leave of the row of a draft token; 1 where there are none."""
        found = torch.ones(len(requests), dtype=torch.float64, device=requests.device)
        some = earlier.any(dim=1).nonzero()[:, 0]
        if self.draft is None or len(some) == 0:
            return found
        rows = self.draft.probs(self.draft_rows[requests[some], place])
        rows = on_target_vocab(rows, self.draft_to_target, self.target.logits.shape[1])
        found[some] = self._left(rows, requests[some], earlier[some]).sum(dim=1)
        return found

    def _left(self, rows: Tensor, requests: Tensor, earlier: Tensor) -> Tensor:
        """[n, V] without the tokens of some siblings, [n, K] bool."""
        taken = torch.zeros_like(rows).scatter_add_(1, self.token_ids[requests], earlier.double())
        return rows.masked_fill(taken > 0, 0.0)

    def earlier_siblings(self, requests: Tensor, places: Tensor) -> Tensor:
        """[n, K] bool, usable siblings before some draft tokens."""
        parents = self.parents[requests]
        same = parents == parents.gather(1, places[:, None])
        return same & leading(places, self.width) & self.usable[requests]


def propose_trees(target_logits: Tensor, draft: Draft, sampling: Sampling) -> TreeProposal:
    """Process the rows of a round and find out which draft tokens can be verified.

    Args:
        target_logits: [N, V], any floating dtype, packed or padded (see target_rows).
        draft: the proposals, no padded slots among them; without parents they are chains.
        sampling: fields [R].
    """
    rows, requests = target_rows(len(target_logits), draft)
    (num_requests, width), vocab_size = draft.token_ids.shape, target_logits.shape[1]
    parents = chain_parents(num_requests, width, draft.token_ids.device) if draft.parents is None else draft.parents
    target = processed(target_logits, sampling_rows(sampling, requests))
    drafted = leading(draft.num_draft_tokens, width)
    missing = drafted & (draft.token_ids == NO_TOKEN)
    # what follows a placeholder of a chain is none of it either
    drafted = drafted & ((missing.cumsum(dim=1) == 0) if draft.parents is None else ~missing)
    inside = (draft.token_ids >= 0) & (draft.token_ids < vocab_size)
    token_ids = torch.where(drafted & inside, draft.token_ids, 0)
    # places without a draft token hang on the context, so that nothing is looked up outside the tree
    parents = torch.where(leading(draft.num_draft_tokens, width), parents, -1)
    one_hot = (sampling.temperature == 0) | (draft.logits is None)
    known = drafted & inside & ~target.invalid[rows.gather(1, parents + 1)]
    wanted = known & ~one_hot[:, None]
    rows_of_draft, draft_rows = None, torch.zeros_like(token_ids)
    if draft.logits is not None and bool(wanted.any()):
        which, places = wanted.nonzero(as_tuple=True)
        slots = which if draft.idx_mapping is None else draft.idx_mapping[which]
        first = first_siblings(parents)[which, places]
        logits = allowed_draft_logits(draft.logits[slots, first], draft, slots, first)
        rows_of_draft = processed(logits, sampling_rows(draft.sampling or sampling, which))
        index = torch.arange(len(which), device=which.device)
        draft_rows[which, places] = index
        ids = to_draft_ids(token_ids[which, places], draft.draft_to_target, vocab_size, logits.shape[1])
        possible = (ids >= 0) & ~rows_of_draft.invalid
        possible &= rows_of_draft.logprobs_at(index, ids.clamp(min=0)) > -torch.inf
        known = known.masked_scatter(wanted, possible)
    found = TreeProposal(
        target=target,
        rows=rows,
        token_ids=token_ids,
        parents=parents + 1,
        depths=depths(parents),
        drafted=drafted,
        usable=known,
        one_hot=one_hot,
        siblings=draft.siblings,
        draft=rows_of_draft,
        draft_rows=draft_rows,
        draft_to_target=draft.draft_to_target,
    )
    return _with_usable(found)


def _with_usable(tree: TreeProposal) -> TreeProposal:
    """The round with those of its usable draft tokens that lie behind usable ones; of distinct siblings none repeats
    another, nor follows others that leave its row no further token."""
    is_distinct = ~tree.one_hot & (tree.siblings is SiblingDraws.distinct)
    for place in range(tree.width):
        usable = tree.usable.clone()
        above = tree.parents[:, place]
        is_behind = (above == 0) | usable.gather(1, (above - 1).clamp(min=0)[:, None])[:, 0]
        usable[:, place] &= is_behind
        requests = (usable[:, place] & is_distinct).nonzero()[:, 0]
        if len(requests):
            earlier = tree.earlier_siblings(requests, torch.full_like(requests, place))
            token_ids = tree.token_ids[requests]
            repeats = (earlier & (token_ids == token_ids[:, place, None])).any(dim=1)
            usable[requests, place] &= ~repeats & (tree.rests(requests, earlier, place) >= SMALLEST_REST)
        tree = replace(tree, usable=usable)
    return tree
