"""Where rows lie: of the target's logits, of the draft-logit cache and of its statistics.

Loads are masked even where the mask is always true: the compiler moves a plain load of a scalar behind the branch that
uses it, where it is one more read from memory that nothing else overlaps; one with a mask stays where it is written.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def row_number(target, tokens, request, index):
    """The row after `index` draft tokens, int64."""
    if target.first_rows is None:
        row = request.to(tl.int64) * (tokens.width + 1) + index
    else:
        first_row = tl.load(target.first_rows + request, mask=request < tokens.num_requests, other=0)
        row = first_row.to(tl.int64) + index
    return row


@triton.jit
def row_address(target, tokens, request, index):
    """Address of the row after `index` draft tokens; int64 before it is multiplied."""
    return target.logits + row_number(target, tokens, request, index) * target.stride


@triton.jit
def draft_slot(draft, request, wanted):
    """The slot of a request's draft rows, int64; 0 unless wanted."""
    slot = request.to(tl.int64)
    if draft.slots is not None:
        slot = tl.load(draft.slots + request, mask=wanted, other=0).to(tl.int64)
    return slot


@triton.jit
def draft_row(draft, slot, index):
    """(address of the row's logits, offset of its statistics), int64."""
    logits = draft.logits + slot * draft.slot_stride + index.to(tl.int64) * draft.position_stride
    return logits, slot * draft.stats_slot_stride + index.to(tl.int64) * draft.stats_position_stride


@triton.jit
def prefetch(row_logits, first, num_tokens, SIZE: tl.constexpr):
    """Fetch SIZE tokens of a row, from `first` on, into the L2 cache, ahead of the loads that read them."""
    STEP: tl.constexpr = 1024 // row_logits.dtype.element_ty.primitive_bitwidth
    offsets = tl.minimum(first + tl.arange(0, SIZE // STEP) * STEP, num_tokens - 1)
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [(row_logits + offsets).to(tl.int64)], dtype=tl.int32,
        is_pure=False, pack=1,
    )  # fmt: skip
