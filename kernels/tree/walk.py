"""Verification of trees by kernels: one launch, whose programs walk through the trees (rejection_walk, traversal_walk).

As many programs share the rows of a request as can run at once (`programs_of_request`): one where the requests alone
fill the GPU. Where rows may be cut, the statistics of all target rows are found first; traversal always needs them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import triton
from torch import Tensor

from ..chain.draft_stats import read_statistics
from ..chain.launch_args import Round, capability
from ..contract import Draft
from ..launch.grid_barrier import STRIDE
from ..launch.kernel_args import RowBuffers, TreeWalk
from ..launch.register_limits import programs_at_once, rejection_walk_registers, traversal_walk_registers
from ..launch.workspace import Shape, Workspace
from ..methods import SiblingDraws
from ..methods.rule import TreeHooks
from .kseq_ratio import POINTS
from .rejection_walk import _rejection_walk_kernel
from .traversal_walk import _traversal_walk_kernel

PARTS = 4
"""Chunks that a program reads at a time, one for each of its warps."""
UNROLL = 4
"""Steps of a program's loop over them that are loaded together."""


def tree_walk(draft: Draft, shape: Shape, workspace: Workspace, hooks: TreeHooks) -> TreeWalk:
    """Room for the walks of a round by a rule; what it holds has no meaning yet."""
    assert draft.parents is not None
    (num_requests, width), device = draft.token_ids.shape, draft.token_ids.device
    num_cells = 2 * num_requests * shape.num_chunks
    points = POINTS.value if hooks.shares_discount else 0

    def sums(name: str, size: int) -> Tensor:
        return workspace.buffer(f"walk_{name}", size, torch.float64, device)

    return TreeWalk(
        parents=draft.parents,
        parent_stride=draft.parents.stride(0),
        path=torch.empty(num_requests, width, dtype=torch.int64, device=device),
        arrivals=workspace.buffer("walk_arrivals", num_requests * STRIDE.value, torch.int32, device, zeroed=True),
        masses=sums("masses", num_cells),
        rests=sums("rests", num_cells),
        ratio_masses=sums("ratio_masses", num_cells * points) if points else None,
        ratio_slopes=sums("ratio_slopes", num_cells * points) if points else None,
    )


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


def programs_of_request(num_requests: int, num_units: int, num_warps: int, registers: int, device: torch.device) -> int:
    """Programs that share the rows of each request of a round, all of which run at once; 1 for no more than that.

    Args:
        num_requests: R.
        num_units: groups of chunks of a step, at most.
        num_warps: of a program.
        registers: of a thread, at most.
        device: where they run.
    """
    if device.type != "cuda" or num_requests == 0:
        return 1
    at_once = programs_at_once(num_warps, registers) * torch.cuda.get_device_properties(device).multi_processor_count
    return max(1, min(num_units, at_once // num_requests))


def launch_walk(round_: Round, draft: Draft, walk: TreeWalk, hooks: TreeHooks) -> None:
    """Walk every request of a round.

    Args:
        round_: the arguments; of `shape` only the requests and the vocabulary.
        draft: with parents.
        walk: from `tree_walk`.
        hooks: of the rule.
    """
    if round_.shape.num_requests == 0:
        return
    for kind in round_.kinds:
        rows = _all_rows(kind) if kind.truncates or hooks.leaves_first else kind.rows
        if hooks.leaves_first:
            _launch_traversal(kind._replace(rows=rows), draft, walk)
        else:
            _launch_rejection(kind._replace(rows=rows), draft, walk, shares_discount=hooks.shares_discount)


def _shared_settings(round_: Round) -> dict[str, Any]:
    """Settings of both kernels."""
    shape = round_.shape
    return shape.chunk_settings(shape.parts(PARTS), round_.target.logits.dtype, UNROLL) | {
        "READS_DRAFT": round_.draft.logits is not None,
        "TRUNCATED": round_.truncates,
        "WIDTH_PADDED": triton.next_power_of_2(round_.tokens.width + 1),
    }


def _grid(round_: Round, num_units: int, settings: dict[str, Any]) -> tuple[tuple[int], int]:
    """(grid, programs of a request); settings of programs that must run at once are added."""
    num_requests = round_.shape.num_requests
    num_programs = programs_of_request(
        num_requests, num_units, settings["num_warps"], settings["maxnreg"], round_.target.logits.device
    )
    settings["launch_cooperative_grid"] = num_programs > 1
    return (num_requests * num_programs,), num_programs


def _with_rejected_ids(walk: TreeWalk, round_: Round, grid: tuple[int]) -> TreeWalk:
    """The walk with a row of K ids for each program."""
    size, device = grid[0] * round_.tokens.width, round_.tokens.token_ids.device
    return walk._replace(removed=round_.workspace.buffer("walk_removed", size, torch.int64, device))


def _launch_rejection(round_: Round, draft: Draft, walk: TreeWalk, shares_discount: bool) -> None:
    sums_drafts = int(round_.shape.sums_drafts)
    settings = _shared_settings(round_) | {
        "SUMS_DRAFTS": sums_drafts,
        "IS_DISTINCT": draft.siblings is SiblingDraws.distinct,
        "SHARES_DISCOUNT": shares_discount,
        "maxnreg": rejection_walk_registers(
            round_.row_traits,
            shares_discount,
            round_.shape.sums_drafts,
            round_.truncates,
            round_.serves is not None,
            capability(),
        ),
    }
    grid, num_programs = _grid(round_, settings["NUM_GROUPS"] * (1 + sums_drafts), settings)
    _rejection_walk_kernel[grid](
        round_.target,
        round_.draft,
        round_.tokens,
        round_.sampling.temperature,
        round_.cutting,
        round_.streams,
        round_.rows,
        _with_rejected_ids(walk, round_, grid),
        round_.output,
        num_programs,
        **settings,
    )


def _launch_traversal(round_: Round, draft: Draft, walk: TreeWalk) -> None:
    reads_draft, traits = round_.draft.logits is not None, round_.row_traits
    settings = _shared_settings(round_) | {
        "IS_DISTINCT": reads_draft and draft.siblings is SiblingDraws.distinct,
        "maxnreg": traversal_walk_registers(traits, round_.truncates, capability()),
    }
    if round_.truncates and traits.joins and traits.is_masked:
        # with all registers that there are, more steps at once spill
        settings["UNROLL"] = 2
    grid, num_programs = _grid(round_, settings["NUM_GROUPS"], settings)
    _traversal_walk_kernel[grid](
        round_.target,
        round_.draft,
        round_.tokens,
        round_.sampling.temperature,
        round_.cutting,
        round_.streams,
        round_.rows,
        _with_rejected_ids(walk, round_, grid),
        round_.output,
        num_programs,
        **settings,
    )
