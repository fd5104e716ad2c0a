"""What several drafts a position would be worth at the contexts of a chain: the terms of kernels.tree.multi_drafts.

A context is the chain's: what follows a draft token that only a tree would have is not in it, so nothing here is the
length of a tree.

Shapes: R requests, K the largest number of draft tokens of a request, V the target's vocabulary.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ..contract import Draft, Sampling
from ..tree.multi_drafts import MAX_DRAFTS, MULTI_DRAFT_TERMS, multi_draft_term
from .masses import places_per_chunk
from .optimal_acceptance import distinct_bound, independent_bound, top_bound
from .proposal import on_target_vocab, propose
from .several_drafts import kseq_acceptance, recursive_acceptance, recursive_pair_acceptance
from .target_rows import present_slots
from .token_mask import allowed_draft_logits
from .truncation import processed, sampling_rows


def multi_draft_terms(target_logits: Tensor, draft: Draft, sampling: Sampling) -> dict[str, Tensor]:
    """Every term at every position of a round.

    Args:
        target_logits: [N, V], any floating dtype, packed or padded as for `verify`.
        draft: the proposals, with the cache of the rows that they were drawn from.
        sampling: fields [R]; a draft's own shapes its rows where it has one. At temperature 0 both distributions are
            one token, and bound_top is whether the target's is among the draft's best.

    Returns:
        Name (MULTI_DRAFT_TERMS) -> [R, K] float64; 0 where there is no usable draft token.
    """
    assert draft.logits is not None, "one-hot proposals have no distribution to draw more from"
    packed = present_slots(target_logits, draft)
    if packed is not None:
        target_logits, left, present = packed
        terms = multi_draft_terms(target_logits, left, sampling_rows(sampling, present))
        return {
            name: term.new_zeros(draft.token_ids.shape).index_copy_(0, present, term) for name, term in terms.items()
        }
    proposal, own = propose(target_logits, draft, sampling, reads_draft=True), draft.sampling or sampling
    # a round at temperature 0 has one token in both, whatever its draft was drawn with
    own = replace(own, temperature=torch.where(sampling.temperature == 0, 0.0, own.temperature))
    places = proposal.usable.nonzero()
    parts = []
    for chunk in places.split(places_per_chunk(target_logits)) if len(places) else ():
        requests, positions = chunk.unbind(dim=1)
        slots = requests if draft.idx_mapping is None else draft.idx_mapping[requests]
        logits = allowed_draft_logits(draft.logits[slots, positions], draft, slots, positions)
        target_probs = proposal.target.probs(proposal.rows[requests, positions])
        rows = processed(logits, sampling_rows(own, requests))
        size, ids = target_probs.shape[1], draft.draft_to_target
        scores = target_probs.new_full(target_probs.shape, -torch.inf)
        scores[:, slice(0, logits.shape[1]) if ids is None else ids] = logits.double()
        parts.append(_of_rows(target_probs, on_target_vocab(rows.probs(), ids, size), scores))
    found = {}
    for name in MULTI_DRAFT_TERMS:
        term = torch.zeros(draft.token_ids.shape, dtype=torch.float64, device=target_logits.device)
        if parts:
            term[places[:, 0], places[:, 1]] = torch.cat([part[name] for part in parts])
        found[name] = term
    return found


def _of_rows(target_probs: Tensor, draft_probs: Tensor, draft_scores: Tensor) -> dict[str, Tensor]:
    """Name -> [n] of some rows, [n, V] float64 each; scores are -inf for tokens that the drafter does not know."""
    both = target_probs, draft_probs
    num_best = min(MAX_DRAFTS, draft_scores.shape[1])
    known = torch.where(draft_scores > -torch.inf, target_probs, 0.0)
    best = top_bound(known, draft_scores, num_best)
    tables = {
        "bound_independent": independent_bound(*both, MAX_DRAFTS),
        "bound_distinct": distinct_bound(*both, MAX_DRAFTS),
        "bound_top": torch.cat([best, best[:, -1:].expand(-1, MAX_DRAFTS - num_best)], dim=1),
        "recursive": recursive_acceptance(*both, MAX_DRAFTS),
        "kseq": kseq_acceptance(*both, MAX_DRAFTS),
    }
    columns = {
        multi_draft_term(rule, number + 1): table[:, number]
        for rule, table in tables.items()
        for number in range(MAX_DRAFTS)
    }
    columns[multi_draft_term("recursive_distinct", 2)] = recursive_pair_acceptance(*both)
    return columns
