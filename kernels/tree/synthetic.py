"""Synthetic acceptance of trees: a launch that walks every request, and a draw from the row where its walk ends.

    walk   the path of a request from its uniform numbers and the parents, whatever the tokens are; no row is read
    draw   a round without drafts (kernels.chain.passes) on one target row of each request, that of its last accepted
    node

Methods that look at tokens read more: the row of each node that a walk comes to, and rows of the draft. The reference
twin is kernels.reference.synthetic.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..chain.accept_count import entry
from ..chain.launch_args import Round, no_draft
from ..chain.passes import launch
from ..contract import Draft, Verification
from ..launch.kernel_args import DraftTokens, Output, TreePaths
from ..methods import VerificationMethod as Method
from ..methods.hooks import hooks_of
from ..methods.synthetic import Synthetic
from ..random.device_streams import ACCEPT, load_stream, uniform
from ..random.streams import Purpose
from ..rows.ragged_offsets import UNPLACED
from .children import NO_CHILD, children_of, first_of, load_nodes


@triton.jit
def _synthetic_walk_kernel(
    target, tokens, walk, streams, output, thresholds, num_levels, num_ranks, drawn_rows, drawn_counts, drawn_positions,
    RANKS_PADDED: tl.constexpr,
    WIDTH_PADDED: tl.constexpr,
):  # fmt: skip
    request = tl.program_id(0)
    row = request.to(tl.int64)
    columns = tl.arange(0, WIDTH_PADDED)
    ranks = tl.arange(0, RANKS_PADDED)
    # without a request no place holds a child
    given = tl.load(tokens.counts + request)
    count = tl.minimum(tl.maximum(given, UNPLACED), tokens.width).to(tl.int32)
    seed, position, round_index = load_stream(streams, request, True)
    nodes = load_nodes(target, tokens, walk, request, count, columns)
    token_ids = nodes[0]
    node = tl.full((), 0, tl.int32)
    drafted = children_of(nodes, node)
    level = tl.full((), 0, tl.int32)
    walks = level < num_levels
    while walks:
        number = uniform(seed, ACCEPT, position + level, round_index)
        sums = tl.load(thresholds + level * num_ranks + ranks, mask=ranks < num_ranks, other=float("inf"))
        rank = tl.sum((number >= sums).to(tl.int32), axis=0)
        order = tl.cumsum(drafted.to(tl.int32), axis=0) - 1
        place = first_of(columns, drafted & (order == rank))
        token = entry(token_ids, columns, place)
        walks = (rank < num_ranks) & (place < NO_CHILD) & (token >= 0)
        if walks:
            tl.store(walk.path + row * tokens.width + level, place.to(tl.int64))
            tl.store(output.token_ids + row * (tokens.width + 1) + level, token.to(tl.int64))
            node = place + 1
            level += 1
            walks = level < num_levels
            drafted = children_of(nodes, node)
    none = tl.full(columns.shape, -1, tl.int64)
    after = columns >= level
    tl.store(walk.path + row * tokens.width + columns, none, mask=after & (columns < tokens.width))
    tl.store(output.token_ids + row * (tokens.width + 1) + columns, none, mask=after & (columns <= tokens.width))
    tl.store(output.num_accepted + request, level.to(tl.int64))
    outside = drafted & (token_ids < 0)
    flagged = (tl.sum(outside.to(tl.int32), axis=0) > 0) | (given > tokens.width)
    tl.store(output.invalid + request, flagged)
    first_row = row * (tokens.width + 1)
    # the draw finds its rows like packed ones, of which alone a request may be UNPLACED
    least = -1
    if target.first_rows is not None:
        first_row = tl.load(target.first_rows + request)
        least = UNPLACED
    tl.store(drawn_rows + request, first_row + node)
    tl.store(drawn_counts + request, tl.maximum(tl.minimum(count, 0), least).to(tl.int64))
    tl.store(drawn_positions + request, position + level)


def launch_synthetic_walk(round_: Round, draft: Draft, verification: Verification) -> Tensor:
    """Walk every request of a round, and draw the token that follows.

    Args:
        round_: the arguments; of `shape` only the requests and the vocabulary.
        draft: with parents.
        verification: with rates of trees.

    Returns:
        [R, K] int64, VerificationResult.path.
    """
    assert draft.parents is not None
    tokens, output, streams, workspace = round_.tokens, round_.output, round_.streams, round_.workspace
    num_requests, device = tokens.num_requests, tokens.token_ids.device
    path = torch.empty(draft.token_ids.shape, dtype=torch.int64, device=device)
    if num_requests == 0:
        return path
    assert isinstance(verification.rule, Synthetic)
    thresholds = workspace.tree_thresholds(verification.rule, device)
    drawn_rows, counts, positions, drawn, unread = (
        workspace.buffer(f"synthetic_{name}", num_requests, torch.int64, device)[:num_requests]
        for name in ("rows", "counts", "positions", "drawn", "unread")
    )
    invalid = workspace.buffer("synthetic_invalid", num_requests, torch.bool, device)[:num_requests]
    _synthetic_walk_kernel[(num_requests,)](
        round_.target,
        tokens,
        TreePaths(draft.parents, draft.parents.stride(0), path),
        streams,
        output,
        thresholds,
        *thresholds.shape,
        drawn_rows,
        counts,
        positions,
        RANKS_PADDED=triton.next_power_of_2(thresholds.shape[1]),
        WIDTH_PADDED=triton.next_power_of_2(tokens.width + 1),
        num_warps=1,
    )
    launch(
        round_._replace(
            hooks=hooks_of(Method.strict),
            traits=Method.strict.traits,
            target=round_.target._replace(first_rows=drawn_rows),
            draft=no_draft(),
            tokens=DraftTokens(counts, 0, counts, num_requests, 0),
            streams=streams._replace(positions=positions),
            output=Output(drawn, unread, invalid, None, None),
            purpose=int(Purpose.bonus),
        )
    )
    is_last = torch.arange(tokens.width + 1, device=device) == output.num_accepted[:, None]
    torch.where(is_last, drawn[:, None], output.token_ids, out=output.token_ids)
    output.invalid.logical_or_(invalid)
    return path
