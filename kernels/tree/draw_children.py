"""Draw the children of a node: several tokens from one row, independent or distinct.

The row is read once, a share with each program; the last of them to finish draws child after child, each with one
uniform number, from the masses of the chunks. A distinct child leaves its chunk, which is weighed again. At temperature
0 the children are the largest logits in their order. Where rows may be cut, their thresholds are found first.
The reference twin is kernels.reference.draw_children.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..chain.draft_stats import read_statistics
from ..chain.launch_args import capability, no_draft, stream_state
from ..chain.residual import residual_weights, without_tokens
from ..chain.residual_sample import weigh_chunks
from ..chain.row_epilogue import is_last, keep_stats, load_stats
from ..chain.row_reduce import combine_chunks
from ..chain.sample_next import chunk_masses, find_token, load_chunks
from ..checks import check_logits, check_row_stats, check_token_map, checked_requests
from ..contract import NO_TOKEN, RowStats, Sampling, Streams, TokenMask
from ..launch.kernel_args import TargetRows
from ..launch.register_limits import draw_children_registers
from ..launch.workspace import Shape, Workspace
from ..methods import SiblingDraws
from ..random.device_streams import DRAFT, load_stream, to_unit, words
from ..rows.chunks import read_group
from ..rows.softmax_weights import scale, total
from ..rows.token_mask import mask_row, mask_rows, only_allowed
from ..rows.unaligned import load_logits, read_in_words
from .children import SMALLEST_REST

PARTS = 4
"""Chunks that a program reads, one for each of its warps."""
UNROLL = 4


@triton.jit
def _largest_of_chunk(target, row_logits, mask, chunk, removed, CHUNK: tl.constexpr, GROUP: tl.constexpr):
    """(largest logit, its first token) of a chunk without the removed tokens; -inf without any."""
    offsets = chunk * CHUNK + tl.arange(0, CHUNK)
    logits = load_logits(row_logits, offsets, target.vocab_size, target.in_words, None)
    logits = only_allowed(logits, offsets, target.vocab_size, mask, GROUP)
    kept = without_tokens(tl.full((CHUNK,), 1.0, tl.float32), offsets, removed)
    logits = tl.where(kept > 0, logits, -float("inf"))
    largest = tl.max(logits, axis=0)
    return largest, tl.min(tl.where(logits == largest, offsets, target.vocab_size), axis=0)


@triton.jit
def _draw_largest(target, row_logits, mask, maxima, removed, CHUNK: tl.constexpr, CHUNKS_PADDED: tl.constexpr):
    """(the largest token of a row without the removed ones, -1 for none; the maxima of the chunks without it, too).

    Args:
        maxima: [CHUNKS_PADDED] float32, of the chunks without the removed tokens.
        removed: (address of their ids, their number); takes one more.
    """
    GROUP: tl.constexpr = 128 // target.logits.dtype.element_ty.primitive_bitwidth
    places = tl.arange(0, CHUNKS_PADDED)
    largest = tl.max(maxima, axis=0)
    token = tl.full((), -1, tl.int32)
    if largest > -float("inf"):
        chunk = tl.min(tl.where(maxima == largest, places, CHUNKS_PADDED), axis=0)
        _, token = _largest_of_chunk(target, row_logits, mask, chunk, removed, CHUNK, GROUP)
        tl.store(removed[0] + removed[1], token.to(tl.int64))
        tl.debug_barrier()
        left, _ = _largest_of_chunk(target, row_logits, mask, chunk, (removed[0], removed[1] + 1), CHUNK, GROUP)
        maxima = tl.where(places == chunk, left, maxima)
    return token, maxima


@triton.jit
def _draw_children_kernel(
    target, temperatures, streams, rows, arrivals, row_masses, removed, branches, children, num_children,
    to_target_ids, draft,
    IS_DISTINCT: tl.constexpr,
    TRUNCATED: tl.constexpr,
    NUM_GROUPS: tl.constexpr,
    PARTS: tl.constexpr,
    CHUNK: tl.constexpr,
    GROUP: tl.constexpr,
    UNROLL: tl.constexpr,
    CHUNKS_PADDED: tl.constexpr,
):  # fmt: skip
    row = (tl.program_id(0) // NUM_GROUPS).to(tl.int64)
    group = tl.program_id(0) % NUM_GROUPS
    temperature = tl.load(temperatures + row)
    row_logits = target.logits + row * target.stride
    mask_number = tl.full((), -1, tl.int64)
    if target.mask_rows is not None:
        mask_number = mask_row(target.mask_rows, row * target.mask_row_stride, True)
    mask = (target.mask_words, target.mask_stride, target.num_mask_words, target.mask_token_ids, mask_number)
    high, low = scale(temperature)
    chunks = group * PARTS + tl.arange(0, PARTS)
    none = tl.full((), 0, tl.int32)
    is_weighed = False
    if TRUNCATED:
        is_weighed = temperature > 0
    if is_weighed:
        maximum, normalizer, threshold = load_stats(rows, row)
        opened = (
            row_logits, maximum, threshold, row_logits, maximum, threshold, none, tl.full((), 0.0, tl.float32),
            none - 1, high, low, normalizer, mask_number, mask_number,
        )  # fmt: skip
        summed, _ = weigh_chunks(target, draft, opened, chunks, none, none, False, True, PARTS, CHUNK, GROUP, UNROLL)
        tl.store(row_masses + row * rows.num_chunks + chunks, summed, mask=chunks < rows.num_chunks)
    else:
        read_group(
            target, rows, rows, streams, rows, row_logits, mask, row, none, row, temperature, group,
            False, False, False, 1, PARTS, CHUNK, GROUP, UNROLL,
        )  # fmt: skip
    if is_last(arrivals + row, NUM_GROUPS):
        places = tl.arange(0, CHUNKS_PADDED)
        loaded = load_chunks(rows, row, CHUNKS_PADDED)
        maxima = loaded[0]
        if TRUNCATED:
            maximum, normalizer, threshold = load_stats(rows, row)
            at = row * rows.num_chunks + places
            masses = tl.load(row_masses + at, mask=places < rows.num_chunks, other=0.0, cache_modifier=".cg")
        else:
            maximum, normalizer, argmax, entropy = combine_chunks(
                rows, row, temperature, loaded, False, False, CHUNKS_PADDED
            )
            threshold = tl.full((), -float("inf"), tl.float32)
            masses = chunk_masses(loaded, maximum, temperature)
            normalizer = tl.where(temperature == 0, normalizer * 0.0 + 1.0, normalizer)
            keep_stats(rows, row, (maximum, normalizer, threshold, argmax, entropy))
        opened = (
            row_logits, maximum, threshold, row_logits, maximum, threshold, none, tl.full((), 0.0, tl.float32),
            none - 1, high, low, normalizer, mask_number, mask_number,
        )  # fmt: skip
        seed, position, round_index = load_stream(streams, row, True)
        taken = removed + row * num_children
        num_taken = none
        for child in range(num_children):
            token = none - 1
            if normalizer == normalizer:
                if temperature == 0:
                    token, maxima = _draw_largest(
                        target, row_logits, mask, maxima, (taken, num_taken), CHUNK, CHUNKS_PADDED
                    )
                    num_taken += 1
                else:
                    whole = tl.sum(masses, axis=0)
                    if whole >= normalizer * SMALLEST_REST:
                        branch = tl.load(branches + row * num_children + child)
                        first, second, _, _ = words(seed, DRAFT, position, round_index, branch)
                        token = find_token(
                            target, draft, opened, masses, to_unit(first, second) * whole, False, TRUNCATED, CHUNK,
                            CHUNKS_PADDED, (taken, num_taken),
                        ).to(tl.int32)  # fmt: skip
                        if IS_DISTINCT:
                            tl.store(taken + num_taken, token.to(tl.int64))
                            tl.debug_barrier()
                            num_taken += 1
                            chunk = token // CHUNK
                            offsets = chunk * CHUNK + tl.arange(0, CHUNK)
                            left = total(
                                residual_weights(target, draft, opened, offsets, False, TRUNCATED, (taken, num_taken)),
                                CHUNK,
                            )
                            masses = tl.where(places == chunk, left, masses)
            found = token.to(tl.int64)
            if to_target_ids is not None:
                found = tl.where(token >= 0, tl.load(to_target_ids + tl.maximum(token, 0)), found)
            tl.store(children + row * num_children + child, found)


def draw_children(
    logits: Tensor,
    sampling: Sampling,
    streams: Streams,
    siblings: SiblingDraws,
    branches: Tensor,
    draft_to_target: Tensor | None = None,
    mask: TokenMask | None = None,
    row_stats: RowStats | None = None,
    workspace: Workspace | None = None,
) -> Tensor:
    """Draw n tokens per row, each with one uniform number.

    Arguments and result are those of kernels.reference.draw_children, but that logits are bfloat16, float16 or float32.

    Args:
        workspace: scratch memory; None takes fresh memory for this call.

    Raises:
        ValueError: a tensor's shape, type or layout is not as there.
    """
    check_logits(logits, "logits", dimensions=2)
    num_rows, vocab_size = logits.shape
    check_token_map(draft_to_target, "draft_to_target", vocab_size)
    check_row_stats(row_stats, "row_stats", (num_rows,))
    if branches.dim() != 2 or len(branches) != num_rows or branches.dtype != torch.int64:
        raise ValueError(
            f"branches must be [{num_rows}, n] int64, one for each child; found {list(branches.shape)} {branches.dtype}"
        )
    sampling, streams = checked_requests(num_rows, sampling, streams)
    device, workspace = logits.device, workspace or Workspace()
    num_children = branches.shape[1]
    children = torch.full((num_rows, num_children), NO_TOKEN, device=device)
    if children.numel() == 0:
        return children
    rows = TargetRows(
        logits, logits.stride(0), vocab_size, None, read_in_words(logits, logits.stride(0)), None,
        *mask_rows(mask, "mask", (num_rows,), vocab_size, draft_to_target),
    )  # fmt: skip
    shape = Shape(num_rows, width=0, vocab_size=vocab_size, num_positions=1)
    if sampling.truncates:
        every = torch.zeros(num_rows, dtype=torch.int64, device=device)
        buffers = read_statistics(rows, sampling, every, shape, workspace, row_stats)
    else:
        buffers = workspace.row_buffers(shape, device, row_stats)
    settings = shape.chunk_settings(shape.parts(PARTS), logits.dtype, UNROLL)
    _draw_children_kernel[(settings["NUM_GROUPS"] * num_rows,)](
        rows,
        sampling.temperature,
        stream_state(streams),
        buffers,
        workspace.buffer("children_arrivals", num_rows, torch.int32, device, zeroed=True),
        workspace.buffer("children_masses", num_rows * shape.num_chunks, torch.float64, device),
        workspace.buffer("children_taken", num_rows * num_children, torch.int64, device),
        branches.contiguous(),
        children,
        num_children,
        draft_to_target,
        no_draft(),
        IS_DISTINCT=siblings is SiblingDraws.distinct,
        TRUNCATED=sampling.truncates,
        maxnreg=draw_children_registers(rows.is_aligned, mask is not None, capability()),
        **settings,
    )
    return children
