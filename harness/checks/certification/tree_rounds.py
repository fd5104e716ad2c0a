"""One round of toy requests with trees of drafts, ragged ones in one batch.

Shapes: R rows of a batch, K draft tokens of a tree at most. Node 0 is the context, node i + 1 draft token i.
The children of a node are drawn together, into the place of the first of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from harness.checks.certification.contract_checks import copied_inputs, num_overwritten, returned
from harness.checks.certification.slot_table import NOT_A_TOKEN, WATCHED_ROUNDS, SlotTable
from harness.checks.certification.subject import Subject
from kernels.contract import NO_TOKEN, Draft, DraftSampling, Sampling, TokenMask, VerificationResult
from kernels.reference.draw_children import draw_children
from kernels.reference.tree_shape import branches, depths, first_siblings
from kernels.reference.truncation import sampling_rows
from kernels.tree.dynamic_shape import Candidates, best_children


class Trees(NamedTuple):
    """The trees of a batch's round."""

    parents: Tensor
    """[R, K] int64; -1 beyond the draft tokens too."""
    num_draft_tokens: Tensor
    """[R] int64."""
    token_ids: Tensor
    """[R, K] int64."""
    states: Tensor
    """[R, K + 1] int64, of the models at each node."""


def shapes_of(table: SlotTable, slots: Tensor) -> tuple[Tensor, Tensor]:
    """([R, K] parents, [R] numbers of draft tokens) of some slots' rounds; they depend on nothing that was drawn."""
    trees, width = table.case.trees, table.depth
    parents = torch.tensor([[*tree, *[-1] * (width - len(tree))] for tree in trees], device=table.device)
    counts = torch.tensor([len(tree) for tree in trees], device=table.device)
    index = (table.digits(slots).length + table.rounds[slots]) % len(trees)
    return parents[index], counts[index]


def propose_trees(table: SlotTable, slots: Tensor, draw: Callable[..., Tensor] = draw_children) -> Trees:
    """Draft in every slot, with the logits in the cache.

    Args:
        table: of the requests.
        slots: [R] int64.
        draw: what draws the children of a node.
    """
    case, models = table.case, table.models
    parents, counts = shapes_of(table, slots)
    num_rows, width = parents.shape
    levels, first = depths(parents), first_siblings(parents)
    at_branch, columns = branches(levels), torch.arange(width, device=table.device)
    drafted = columns < counts[:, None]
    token_ids = torch.full((num_rows, width), NOT_A_TOKEN, device=table.device)
    states = table.states[slots][:, None].repeat(1, width + 1)
    sampling = table.sampling(slots)
    if case.draft_sampling is DraftSampling.greedy:
        off = torch.zeros_like(sampling.temperature)
        sampling = Sampling(off, torch.zeros_like(sampling.top_k), off + 1, off, truncates=False)
    for place in range(width):
        begins = (drafted[:, place] & (first[:, place] == place)).nonzero()[:, 0]
        if len(begins) == 0:
            continue
        siblings = drafted[begins] & (first[begins] == place)
        num_siblings = siblings.sum(dim=1)
        # places of the siblings, in order
        order = (~siblings).long().argsort(dim=1, stable=True)[:, : int(num_siblings.max())]
        above = states[begins].gather(1, parents[begins, place, None] + 1)[:, 0]
        logits = table.draft_rows[above]
        masked = table.masked(above)
        table.cache[slots[begins], place] = logits.to(table.cache.dtype)
        if masked:
            table.cache_mask_rows[slots[begins], place] = masked["mask"].rows
        streams = table.streams(slots[begins], levels[begins, place + 1] - 1)
        draws = at_branch[begins].gather(1, order)
        given = sampling_rows(sampling, begins)
        drawn = draw(logits, given, streams, case.siblings, draws, models.draft_to_target, **masked)
        for child in range(order.shape[1]):
            mine = (num_siblings > child).nonzero()[:, 0]
            rows, places = begins[mine], order[mine, child]
            is_below = token_ids[rows, parents[rows, places].clamp(min=0)] != NO_TOKEN
            is_below |= parents[rows, places] < 0
            token_ids[rows, places] = torch.where(is_below, drawn[mine, child], NO_TOKEN)
            numbers = table.numbers_of(drawn[mine, child]).clamp(min=0)
            states[rows, places + 1] = models.next_states(above[mine], numbers)
    return Trees(parents, counts, token_ids, states)


def propose_dynamic_trees(table: SlotTable, slots: Tensor, draw: Callable[..., Tensor] = draw_children) -> Trees:
    """Choose in every slot the tokens that the drafter finds most probable, and put the rows that they are the best of
    where the rows of drawn ones would be.

    Args: as of `propose_trees`.
    """
    models, bounds = table.models, table.case.dynamic_tree
    assert bounds is not None
    map_, size = models.draft_to_target, len(slots)
    candidates, states = Candidates(), table.states[slots][:, None]
    for depth in range(bounds.depth):
        if depth:
            beam = candidates.next_beam(bounds.width)
            numbers = table.numbers_of(beam.token_ids).clamp(min=0)
            states = models.next_states(states.gather(1, beam.above).flatten(), numbers.flatten()).view(size, -1)
        found, logprobs = best_children(table.draft_rows[states.flatten()], bounds.width, draw)
        if map_ is not None:
            found = torch.where(found == NO_TOKEN, NO_TOKEN, map_[found.clamp(min=0)])
        candidates.add(found.view(size, -1, bounds.width), logprobs.view(size, -1, bounds.width))
    chosen = candidates.best(bounds.num_nodes)
    token_ids, parents = chosen.token_ids, chosen.parents
    token_ids = torch.where(token_ids == NO_TOKEN, NOT_A_TOKEN, token_ids)
    nodes = [table.states[slots]]
    for place, above in enumerate(parents.unbind(dim=1)):
        numbers = table.numbers_of(token_ids[:, place]).clamp(min=0)
        before = torch.stack(nodes, dim=1).gather(1, above[:, None] + 1)[:, 0]
        table.cache[slots, place] = table.draft_rows[before].to(table.cache.dtype)
        nodes.append(models.next_states(before, numbers))
    return Trees(parents, chosen.num_draft_tokens, token_ids, torch.stack(nodes, dim=1))


def simulate_tree_round(subject: Subject, table: SlotTable, slots: Tensor) -> None:
    """One round of some slots."""
    case, models, width = table.case, table.models, table.depth
    propose = propose_trees if case.dynamic_tree is None else propose_dynamic_trees
    trees = propose(table, slots, getattr(subject, "draw_children", None) or draw_children)
    present = torch.arange(width + 1, device=table.device) <= trees.num_draft_tokens[:, None]
    states = trees.states[present]
    draft = Draft(
        token_ids=trees.token_ids,
        num_draft_tokens=trees.num_draft_tokens,
        logits=table.cache if case.cached else None,
        idx_mapping=slots if case.cached else None,
        draft_to_target=models.draft_to_target if case.cached else None,
        mask=TokenMask(table.words, table.cache_mask_rows) if case.cached and table.words is not None else None,
        parents=trees.parents,
        siblings=case.siblings,
    )
    logits = table.target_rows[states]
    table.num_rounds += 1
    is_watched = table.device.type == "cpu" and table.num_rounds <= WATCHED_ROUNDS
    copies = copied_inputs(logits, draft) if is_watched else None
    arguments = table.sampling(slots), case.verification, table.streams(slots)
    found = subject.verify(logits, draft, *arguments, **table.masked(states))
    size = (len(slots),)
    shapes = {"token_ids": (*size, width + 1), "num_accepted": size, "invalid": size, "path": (*size, width)}
    verdict = returned("verify", found, VerificationResult, **shapes)
    table.tallies[0] += num_tree_faults(verdict, draft, table.numbers_of(verdict.token_ids))
    if copies is not None:
        table.tallies[0] += num_overwritten(copies, logits, draft)
    table.commit(slots, verdict, trees.num_draft_tokens)


def num_tree_faults(verdict: VerificationResult, draft: Draft, numbers: Tensor) -> Tensor:
    """[] int64, the verdicts that are flagged, whose path is none of the tree, or that emit other tokens than it has.

    Args:
        verdict: fields [R].
        draft: what was verified.
        numbers: [R, K + 1] int64, the models' own numbers of the output tokens, -1 for what is no token of it.
    """
    path, emitted = verdict.path, verdict.token_ids
    assert path is not None and draft.parents is not None
    columns = torch.arange(emitted.shape[1], device=emitted.device)
    accepted = columns[:-1] < verdict.num_accepted[:, None]
    places = path.clamp(0, max(path.shape[1] - 1, 0))
    above = torch.cat([torch.full_like(path[:, :1], -1), path[:, :-1]], dim=1)
    wrong = verdict.invalid | (verdict.num_accepted < 0) | (verdict.num_accepted > draft.num_draft_tokens)
    wrong |= (accepted & (path >= draft.num_draft_tokens[:, None])).any(1) | (accepted != (path >= 0)).any(1)
    wrong |= (accepted & (draft.parents.gather(1, places) != above)).any(1)
    wrong |= (accepted & (emitted[:, :-1] != draft.token_ids.gather(1, places))).any(1)
    written = columns <= verdict.num_accepted[:, None]
    wrong |= torch.where(written, numbers < 0, emitted != -1).any(1)
    return wrong.sum()
