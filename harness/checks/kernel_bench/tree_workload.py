"""The batch of a case whose drafts are trees: rows of all nodes, and children drawn from the cached rows of their node.

The target row of a node is independent of the other nodes', as no model is run; the draft row of its children is the
same row with the drafter's error. The drafts are drawn by the reference, whichever core is timed.

Shapes: R requests, K draft tokens of each.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from harness.checks.agreement.round_inputs import RoundInputs
from harness.checks.kernel_bench.case import Case
from harness.checks.kernel_bench.drafter_error import error_for
from harness.checks.kernel_bench.rows import drafted_rows, rows_of, sampling_of, streams_of
from harness.config.tree import Tree
from kernels.contract import NO_TOKEN, Draft, DraftSampling
from kernels.reference.draw_children import draw_children
from kernels.reference.tree_shape import branches, depths

REQUESTS_AT_ONCE = 16
"""Requests whose rows of one node are made together."""


def make_tree_round(case: Case, seed: int, device: torch.device) -> RoundInputs:
    """One round of verification of trees; slot r of the cache is request r's."""
    count, width, vocab_size = case.num_requests, case.width, case.vocab_size
    dtype, parents = getattr(torch, case.dtype.value), case.parents
    generator = torch.Generator(device).manual_seed(seed)
    target = torch.empty(count, width + 1, vocab_size, dtype=dtype, device=device)
    cache = torch.empty(count, width, vocab_size, dtype=dtype, device=device)
    sampling = sampling_of(count, case.temperature, case.truncation, device)
    streams, error = streams_of(count, seed, device), error_for(case, device)
    shape = torch.tensor([parents], device=device)
    levels, at_branch = depths(shape), branches(depths(shape))
    token_ids = torch.full((count, width), NO_TOKEN, device=device)
    for node in range(-1, width):
        children = [place for place, parent in enumerate(parents) if parent == node]
        for part in torch.arange(count, device=device).split(REQUESTS_AT_ONCE):
            rows = rows_of(case.rows, len(part), vocab_size, generator)
            target[part, node + 1] = rows.to(dtype)
            if children:
                cache[part, children[0]] = drafted_rows(rows, error, generator).to(dtype)
        if children:
            here = replace(streams, positions=streams.positions + levels[0, node + 1])
            at = at_branch[:, children].expand(count, -1)
            drawn = draw_children(cache[:, children[0]], sampling, here, case.siblings, at)
            token_ids[:, children] = _below(drawn, token_ids, node)
    draft = Draft(
        token_ids,
        torch.full((count,), width, device=device),
        None if case.draft_sampling is DraftSampling.greedy else cache,
        parents=shape.expand(count, -1),
        siblings=case.siblings,
    )
    return RoundInputs(target.flatten(0, 1), draft, sampling, streams)


def _below(drawn: Tensor, token_ids: Tensor, node: int) -> Tensor:
    """Children, NO_TOKEN where their parent is none."""
    return drawn if node < 0 else torch.where(token_ids[:, node : node + 1] == NO_TOKEN, NO_TOKEN, drawn)


def num_rejected(case: Case, draft: Draft, path: Tensor, num_accepted: Tensor) -> int:
    """Children that recursive rejection rejects over the whole batch, each of which leaves a residual to be weighed."""
    parents, tokens, rejected = case.parents, draft.token_ids.tolist(), 0
    for token_ids, accepted, length in zip(tokens, path.tolist(), num_accepted.tolist(), strict=True):
        for node, stop in zip([-1, *accepted[:length]], [*accepted[:length], case.width], strict=True):
            rejected += sum(parents[place] == node and token_ids[place] != NO_TOKEN for place in range(stop))
    return rejected


def num_discounts(case: Case, draft: Draft, path: Tensor, num_accepted: Tensor) -> int:
    """Times that K-SEQ must weigh the rows of a node over the batch: for the discount of several children, at least
    once, and for the residual where all children are rejected."""
    parents, tokens, weighed = case.parents, draft.token_ids.tolist(), 0
    for token_ids, accepted, length in zip(tokens, path.tolist(), num_accepted.tolist(), strict=True):
        for step, node in enumerate([-1, *accepted[:length]]):
            children = sum(
                parent == node and token != NO_TOKEN for parent, token in zip(parents, token_ids, strict=True)
            )
            weighed += (children > 1) + (children > 0 and step == length)
    return weighed


def deleted_nodes(case: Case, draft: Draft, path: Tensor, num_accepted: Tensor) -> list[int]:
    """Nodes that traversal deletes over the batch: those before the accepted one, children before their parent."""
    order, tokens, deleted = _children_first(case.parents, -1), draft.token_ids.tolist(), []
    for token_ids, accepted, length in zip(tokens, path.tolist(), num_accepted.tolist(), strict=True):
        before = order[: order.index(accepted[length - 1] if length else -1)]
        deleted += [node for node in before if token_ids[node] != NO_TOKEN]
    return deleted


def _children_first(parents: Tree, node: int) -> list[int]:
    """A node and all below it, siblings in their order."""
    children = [place for place, parent in enumerate(parents) if parent == node]
    return [*(below for child in children for below in _children_first(parents, child)), node]
