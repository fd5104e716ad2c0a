"""The logits of a row at or above a bound, packed into a few registers of each thread.

The pass that reads a row marks its groups of tokens that reach the bound, in bits; here the marks become a list, and
the tokens of the groups listed are packed side by side. A group has 16 bytes, or two tokens in a short row. This module
does not know where the bound lies, nor what is looked for above it (see kernels.rows.thresholds).
"""

from __future__ import annotations

import triton
import triton.language as tl

from .token_mask import only_allowed
from .unaligned import load_logits

MARKS: tl.constexpr = tl.constexpr(32)
"""Steps over a row whose groups a thread marks in the bits of one number."""
NOWHERE: tl.constexpr = tl.constexpr(2**30)
"""An offset beyond the end of any row."""
OVERFULL: tl.constexpr = tl.constexpr(2**20)
"""Counts from here on are those of a share without room for all of its tokens."""
PART: tl.constexpr = tl.constexpr(4)
"""Groups that a thread loads at a time, at most; more would take too many registers."""


@triton.jit
def list_places(scratch, warps, places, DEPTH: tl.constexpr):
    """Addresses in the lists, int16: each fills the share of its warp from the end."""
    SHARE: tl.constexpr = 32 * DEPTH * (scratch.dtype.element_ty.primitive_bitwidth // 16)
    return scratch.to(tl.pointer_type(tl.int16), bitcast=True) + (warps + 1) * SHARE - 1 - places


@triton.jit
def list_marks(marks, found, first_step, counts, scratch, DEPTH: tl.constexpr):
    """List the groups that are marked, each warp those of its own share of the row.

    Args:
        marks: [WARPS, 32] int32, a bit for each of MARKS steps over the row; so is `found`, the number of bits.
        first_step: that of the lowest bit.
        counts: [WARPS] int32, groups that each warp has listed before.
        scratch: address of the lists, of the logits' type: 32 * DEPTH of them for each warp.

    Returns:
        `counts` with the new ones; the first 32 * DEPTH groups of a warp are listed.
    """
    lanes = tl.arange(0, 32)[None, :]
    warps = tl.arange(0, found.shape[0])[:, None]
    places = counts[:, None] + tl.cumsum(found, axis=1) - found
    for _ in tl.range(0, tl.max(tl.max(found, axis=1), axis=0)):
        mark = marks & -marks
        # The exponent of a power of two says which.
        step = ((mark.to(tl.float32).to(tl.int32, bitcast=True) >> 23) & 255) - 127 + first_step
        listed = list_places(scratch, warps, places, DEPTH)
        tl.store(listed, (step * 32 + lanes).to(tl.int16), mask=(mark != 0) & (places < 32 * DEPTH))
        places += 1
        marks ^= mark
    return counts + tl.sum(found, axis=1)


@triton.jit
def load_list(scratch, counts, start, WIDTH: tl.constexpr, GROUP: tl.constexpr, DEPTH: tl.constexpr):
    """[WARPS, WIDTH] int32 first tokens of the groups from `start` on of each list, NOWHERE after the last one.

    Args:
        scratch: of `list_marks`.
        counts: [WARPS] int32, the number of groups in each list.
    """
    WARPS: tl.constexpr = counts.shape[0]
    warps = tl.arange(0, WARPS)[:, None]
    places = start + tl.arange(0, WIDTH)[None, :]
    there = places < counts[:, None]
    groups = tl.load(list_places(scratch, warps, places, DEPTH), mask=there, other=0).to(tl.int32) & 0xFFFF
    # The warps take 32 groups each in turn.
    return tl.where(there, ((groups // 32 * WARPS + warps) * 32 + groups % 32) * GROUP, NOWHERE)


@triton.jit
def load_groups(row_logits, vocab_size, in_words, mask, smallest, firsts, GROUP: tl.constexpr):
    """[WARPS, n, GROUP] float32 logits of the groups that begin at `firsts` [WARPS, n], -inf below `smallest`."""
    # Told what it cannot see, the compiler gives a group to a thread.
    firsts = tl.multiple_of(firsts, (GROUP, GROUP))
    offsets = firsts[:, :, None] + tl.arange(0, GROUP)[None, None, :]
    logits = load_logits(row_logits, offsets, vocab_size, in_words)
    logits = only_allowed(logits, offsets, vocab_size, mask, GROUP)
    return tl.where(logits >= smallest, logits, -float("inf"))


@triton.jit
def pack(logits, smallest, packed, counts, GROUP: tl.constexpr, DEPTH: tl.constexpr):
    """Store the finite ones of `load_groups` side by side in the scratch memory, each warp in a share of its own.

    Args:
        counts: [WARPS] int32, logits that each warp has stored before.

    Returns:
        `counts` with the new ones; the first 32 * DEPTH of a warp are kept.
    """
    found = tl.sum((logits > -float("inf")).to(tl.int32), axis=2)
    places = counts[:, None] + tl.cumsum(found, axis=1) - found
    shares = packed + tl.arange(0, logits.shape[0])[:, None] * (32 * DEPTH)
    # Sums of integers, of which all but one are 0, cost nothing.
    bits = logits.to(tl.int32, bitcast=True)
    columns = tl.arange(0, GROUP)[None, None, :]
    for column in tl.static_range(GROUP):
        chosen = tl.sum(tl.where(columns == column, bits, 0), axis=2).to(tl.float32, bitcast=True)
        is_finite = chosen >= smallest
        tl.store(shares + places, chosen.to(packed.dtype.element_ty), mask=is_finite & (places < 32 * DEPTH))
        places += is_finite.to(tl.int32)
    return counts + tl.sum(found, axis=1)


@triton.jit
def pack_listed(
    row_logits, vocab_size, in_words, mask, smallest, num_groups, scratch, GROUP: tl.constexpr, DEPTH: tl.constexpr
):
    """Pack the tokens of the groups listed, in the place of the lists.

    The last groups listed lie foremost and are packed first. What is left of a list lies behind the tokens stored so
    far, because every group has one token at least.

    Args:
        smallest: the bound, float32.
        num_groups: [WARPS] int32, in each list; no list may have overflowed.
        scratch: of `list_marks`.

    Returns:
        [WARPS] int32, the number of tokens that each warp had, all of which are packed if they are no more than
        32 * DEPTH.
    """
    WIDTH: tl.constexpr = 32 * min(PART, DEPTH)
    counts = tl.zeros_like(num_groups)
    num_parts = tl.cdiv(tl.max(num_groups, axis=0), WIDTH)
    for index in tl.range(0, num_parts):
        start = (num_parts - 1 - index) * WIDTH
        left = tl.minimum(num_groups, start + WIDTH)
        counts = tl.where(counts + left > 32 * DEPTH, OVERFULL, counts)
        # All threads have done with writing, and then with reading what is written over.
        tl.debug_barrier()
        firsts = load_list(scratch, num_groups, start, WIDTH, GROUP, DEPTH)
        tl.debug_barrier()
        logits = load_groups(row_logits, vocab_size, in_words, mask, smallest, firsts, GROUP)
        counts = pack(logits, smallest, scratch, counts, GROUP, DEPTH)
    tl.debug_barrier()
    return counts


@triton.jit
def unpack(packed, counts, LANES: tl.constexpr, GROUP: tl.constexpr, DEPTH: tl.constexpr):
    """[THREADS, DEPTH] float32, what `pack_listed` stored; -inf after the last one of a warp."""
    WARPS: tl.constexpr = LANES // GROUP // 32
    places = tl.arange(0, 32)[None, :, None] * DEPTH + tl.arange(0, DEPTH)[None, None, :]
    shares = tl.arange(0, WARPS)[:, None, None] * (32 * DEPTH)
    logits = tl.load(packed + shares + places, mask=places < counts[:, None, None], other=-float("inf"))
    return tl.reshape(logits.to(tl.float32), (WARPS * 32, DEPTH))
