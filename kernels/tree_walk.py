"""Verification of trees by kernels: a launch for each step of the longest walk (kernels.tree_step, traversal_step).

A walk asks about a draft token at most once, and each step but the first follows one that was asked about; so there are
at most K + 1 steps, and one more where rows are cut. `Draft.shape` tells how many fewer suffice: the numbers on the
device cannot be read in time. Where rows may be cut, the statistics of all target rows are found first. Traversal
always needs them; each of its steps but the first weighs a deletion, of K at most, and one more the accepted node.
K-SEQ takes some steps at each node with several children, so most where every node on the way has two.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import triton
from torch import Tensor

from .arguments import RowBuffers, TraversalState, TreeWalk, WalkState
from .contract import Draft
from .draft_stats import read_statistics
from .kseq_ratio import POINTS, num_ratio_steps
from .methods import SiblingDraws, TreeMethod
from .passes import SECOND_PASS_UNROLL, overlaps
from .register_limits import traversal_step_registers, tree_step_registers
from .round import Round, capability
from .traversal_step import _traversal_step_kernel
from .tree_shape import longest_walk, most_node_steps
from .tree_step import _tree_step_kernel
from .workspace import Shape, Workspace

PARTS = 4
"""Chunks that a program reads, one for each of its warps."""


def tree_walk(draft: Draft, shape: Shape, workspace: Workspace, method: TreeMethod) -> TreeWalk:
    """Room for the walks of a round by a method; what it holds has no meaning yet."""
    assert draft.parents is not None
    (num_requests, width), device = draft.token_ids.shape, draft.token_ids.device
    num_cells = num_requests * shape.num_chunks
    points = POINTS.value if method is TreeMethod.kseq else 0

    def scratch(name: str, size: int, dtype: torch.dtype) -> Tensor:
        return workspace.buffer(f"walk_{name}", size, dtype, device)

    return TreeWalk(
        parents=draft.parents,
        parent_stride=draft.parents.stride(0),
        path=torch.empty(num_requests, width, dtype=torch.int64, device=device),
        arrivals=workspace.buffer("walk_arrivals", num_requests, torch.int32, device, zeroed=True),
        removed=scratch("removed", num_requests * width, torch.int64),
        masses=scratch("masses", num_cells, torch.float64),
        rests=scratch("rests", num_cells, torch.float64),
        ratios=scratch("ratios", num_requests * points, torch.float64) if points else None,
        ratio_masses=scratch("ratio_masses", num_cells * points, torch.float64) if points else None,
        ratio_slopes=scratch("ratio_slopes", num_cells * points, torch.float64) if points else None,
    )


def _walk_state(name: str, num_requests: int, device: torch.device, workspace: Workspace) -> WalkState:
    def scratch(field: str, dtype: torch.dtype) -> Tensor:
        return workspace.buffer(f"walk_{field}_{name}", num_requests, dtype, device)

    dtypes = dict.fromkeys(WalkState._fields, torch.int32) | {"factors": torch.float64}
    return WalkState(**{field: scratch(field, dtype) for field, dtype in dtypes.items()})


def _all_rows(round_: Round) -> RowBuffers:
    """The statistics of the target rows of the requests that a round serves; of rows that belong to no node nothing.

    Row r * (K + 1) + i belongs to node i of request r.
    """
    tokens, sampling, device = round_.tokens, round_.sampling, round_.tokens.token_ids.device
    num_nodes = tokens.width + 1
    counts = tokens.counts.clamp(max=tokens.width)
    if round_.serves is not None:
        cuts = (sampling.top_k > 0) | (sampling.top_p < 1) | (sampling.min_p > 0)
        counts = torch.where((cuts & (sampling.temperature > 0)) == round_.serves, counts, -1)
    nodes = torch.arange(num_nodes, device=device)
    first_rows = round_.target.first_rows
    if first_rows is None:
        first_rows = torch.arange(tokens.num_requests, device=device) * num_nodes
    is_node = nodes <= counts[:, None]
    rows = torch.where(is_node, first_rows[:, None] + nodes, 0).flatten()
    shape = Shape(tokens.num_requests * num_nodes, width=0, vocab_size=round_.shape.vocab_size, num_positions=1)
    given = replace(sampling, truncates=round_.truncates, is_mixed=False)
    each = given.each(lambda field: field.repeat_interleave(num_nodes))
    unread = torch.where(is_node, 0, -1).flatten()
    return read_statistics(round_.target._replace(first_rows=rows), each, unread, shape, round_.workspace)


def launch_walk(round_: Round, draft: Draft, walk: TreeWalk, method: TreeMethod) -> None:
    """Walk every request of a round.

    Args:
        round_: the arguments; of `shape` only the requests and the vocabulary.
        draft: with parents.
        walk: from `tree_walk`.
        method: by which.
    """
    traverses = method is TreeMethod.traversal
    for kind in round_.kinds:
        rows = _all_rows(kind) if kind.truncates or traverses else kind.rows
        if traverses:
            _launch_traversal(kind._replace(rows=rows), draft, walk)
        else:
            _launch_steps(kind._replace(rows=rows), draft, walk, method)


def _step_settings(round_: Round) -> dict[str, Any]:
    """Settings that the steps of both methods share."""
    shape = round_.shape
    return shape.chunk_settings(shape.parts(PARTS), round_.target.logits.dtype, SECOND_PASS_UNROLL) | {
        "READS_DRAFT": round_.draft.logits is not None,
        "TRUNCATED": round_.truncates,
        "WIDTH_PADDED": triton.next_power_of_2(round_.tokens.width + 1),
        "OVERLAPS": overlaps(),
    }


def _steps_at_node(num_children: int) -> int:
    """K-SEQ's, to the test of a node's children: one that reads its row, and those that find their discount."""
    return 1 + num_ratio_steps(num_children)


def _num_steps(method: TreeMethod, width: int, parents: tuple[int, ...] | None) -> int:
    """Steps of the longest walk, without truncation; of any tree of K draft tokens where the shape is not known."""
    if method is TreeMethod.kseq:
        if parents is not None:
            return most_node_steps(parents, _steps_at_node)
        return width // 2 * _steps_at_node(2) + width % 2 * _steps_at_node(1) + 1
    return 1 + (width if parents is None else longest_walk(parents))


def _launch_steps(round_: Round, draft: Draft, walk: TreeWalk, method: TreeMethod) -> None:
    shape, is_kseq = round_.shape, method is TreeMethod.kseq
    num_steps = _num_steps(method, round_.tokens.width, draft.shape) + round_.truncates
    settings = _step_settings(round_)
    sums_drafts = int(shape.sums_drafts)
    device, workspace = round_.tokens.token_ids.device, round_.workspace
    states = [_walk_state(name, shape.num_requests, device, workspace) for name in ("even", "odd")]
    for step in range(num_steps):
        _tree_step_kernel[(settings["NUM_GROUPS"] * (1 + sums_drafts) * shape.num_requests,)](
            round_.target,
            round_.draft,
            round_.tokens,
            round_.sampling.temperature,
            round_.cutting,
            round_.streams,
            round_.rows,
            walk,
            states[step % 2],
            states[(step + 1) % 2],
            round_.output,
            FIRST=step == 0,
            SUMS_DRAFTS=sums_drafts,
            IS_DISTINCT=draft.siblings is SiblingDraws.distinct,
            IS_KSEQ=is_kseq,
            launch_pdl=overlaps() and step > 0,
            maxnreg=tree_step_registers(round_.row_traits, step == 0, is_kseq, capability()),
            **settings,
        )


def _traversal_state(num_requests: int, width: int, device: torch.device, workspace: Workspace) -> TraversalState:
    """Room for the walks of a round; what it holds has no meaning yet."""
    by_request = ("modes", "nodes", "first_children", "factors", "begins", "levels", "num_removed")
    floats = {"factors", "chances", "kappas", "stack_factors", "rests", "weights", "laws"}

    def scratch(field: str) -> Tensor:
        size = num_requests * (1 if field in by_request else width + 1)
        dtype = torch.float64 if field in floats else torch.int32
        return workspace.buffer(f"traversal_{field}", size, dtype, device)

    return TraversalState(**{field: scratch(field) for field in TraversalState._fields})


def _launch_traversal(round_: Round, draft: Draft, walk: TreeWalk) -> None:
    shape, width = round_.shape, round_.tokens.width
    reads_draft = round_.draft.logits is not None
    # one-hot children are deleted without a step
    num_steps = 2 + (width if reads_draft else 0)
    settings = _step_settings(round_)
    device = round_.tokens.token_ids.device
    state = _traversal_state(shape.num_requests, width, device, round_.workspace)
    for step in range(num_steps):
        _traversal_step_kernel[(settings["NUM_GROUPS"] * shape.num_requests,)](
            round_.target,
            round_.draft,
            round_.tokens,
            round_.sampling.temperature,
            round_.cutting,
            round_.streams,
            round_.rows,
            walk,
            state,
            round_.output,
            FIRST=step == 0,
            IS_DISTINCT=reads_draft and draft.siblings is SiblingDraws.distinct,
            launch_pdl=overlaps() and step > 0,
            maxnreg=traversal_step_registers(round_.row_traits, step == 0),
            **settings,
        )
