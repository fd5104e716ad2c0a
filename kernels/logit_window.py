"""The logits of a row that lie in a window of values, packed into a few registers of each thread.

This module does not know where a window begins, nor what is looked for in it (see kernels.thresholds).
"""

from __future__ import annotations

import triton
import triton.language as tl

from .row_words import load_logits
from .token_mask import only_allowed

MARKS: tl.constexpr = tl.constexpr(32)
"""Steps over a row whose groups a thread marks in the bits of one number."""
NOWHERE: tl.constexpr = tl.constexpr(2**30)
"""An offset beyond the end of any row."""


@triton.jit
def list_groups(
    row_logits, vocab_size, in_words, mask, smallest, largest, listed,
    LANES: tl.constexpr, GROUP: tl.constexpr, DEPTH: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """List the groups with a logit from `smallest` to `largest`, each warp those of its own share of the row.

    Returns:
        [WARPS] int32, the number of groups that each found; the first 32 * DEPTH of them are listed.
    """
    WARPS: tl.constexpr = LANES // GROUP // 32
    lanes = tl.arange(0, 32)[None, :]
    lists = tl.arange(0, WARPS)[:, None] * (32 * DEPTH)
    counts = tl.full((WARPS,), 0, tl.int32)
    for start in tl.range(0, vocab_size, LANES * MARKS):
        marks = tl.full((WARPS, 32), 0, tl.int32)
        found = tl.full((WARPS, 32), 0, tl.int32)
        stop = tl.minimum(vocab_size, start + LANES * MARKS)
        for first in tl.range(start, stop, LANES, loop_unroll_factor=UNROLL):
            offsets = first + tl.arange(0, LANES)
            values = load_logits(row_logits, offsets, vocab_size, in_words)
            values = only_allowed(values, offsets, vocab_size, mask, GROUP)
            logits = tl.reshape(values, (WARPS, 32, GROUP))
            highest = tl.max(tl.where(logits <= largest, logits, -float("inf")), axis=2)
            reaches = (highest >= smallest).to(tl.int32)
            found += reaches
            marks |= reaches << ((first - start) // LANES)
        places = counts[:, None] + tl.cumsum(found, axis=1) - found
        for _ in tl.range(0, tl.max(tl.max(found, axis=1), axis=0)):
            mark = marks & -marks
            # The exponent of a power of two says which.
            step = ((mark.to(tl.float32).to(tl.int32, bitcast=True) >> 23) & 255) - 127 + start // LANES
            listing = (mark != 0) & (places < 32 * DEPTH)
            tl.store(listed + lists + places, (step * 32 + lanes).to(tl.int16), mask=listing)
            places += 1
            marks ^= mark
        counts += tl.sum(found, axis=1)
    return counts


@triton.jit
def load_groups(
    row_logits, vocab_size, in_words, mask, smallest, largest, listed, counts,
    LANES: tl.constexpr, GROUP: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """[WARPS, 32 * DEPTH, GROUP] float32 logits of the groups listed, -inf outside of `smallest` to `largest`."""
    WARPS: tl.constexpr = LANES // GROUP // 32
    warps = tl.arange(0, WARPS)[:, None]
    places = tl.arange(0, 32 * DEPTH)[None, :]
    there = places < counts[:, None]
    groups = tl.load(listed + warps * (32 * DEPTH) + places, mask=there, other=0).to(tl.int32) & 0xFFFF
    # The warps take 32 groups each in turn.
    firsts = tl.where(there, ((groups // 32 * WARPS + warps) * 32 + groups % 32) * GROUP, NOWHERE)
    # Told what it cannot see, the compiler gives a group to a thread.
    firsts = tl.multiple_of(firsts, (GROUP, GROUP))
    offsets = firsts[:, :, None] + tl.arange(0, GROUP)[None, None, :]
    logits = load_logits(row_logits, offsets, vocab_size, in_words)
    logits = only_allowed(logits, offsets, vocab_size, mask, GROUP)
    return tl.where((logits >= smallest) & (logits <= largest), logits, -float("inf"))


@triton.jit
def pack(logits, smallest, packed, LANES: tl.constexpr, GROUP: tl.constexpr, DEPTH: tl.constexpr):
    """Store the finite ones of `load_groups` side by side in the scratch memory, each warp in a share of its own.

    Returns:
        [WARPS] int32, the number of logits that each had; the first 32 * DEPTH of them are kept.
    """
    WARPS: tl.constexpr = LANES // GROUP // 32
    found = tl.sum((logits > -float("inf")).to(tl.int32), axis=2)
    places = tl.cumsum(found, axis=1) - found
    shares = packed + tl.arange(0, WARPS)[:, None] * (32 * DEPTH)
    # Sums of integers, of which all but one are 0, cost nothing.
    bits = logits.to(tl.int32, bitcast=True)
    columns = tl.arange(0, GROUP)[None, None, :]
    for column in tl.static_range(GROUP):
        chosen = tl.sum(tl.where(columns == column, bits, 0), axis=2).to(tl.float32, bitcast=True)
        is_finite = chosen >= smallest
        tl.store(shares + places, chosen.to(packed.dtype.element_ty), mask=is_finite & (places < 32 * DEPTH))
        places += is_finite.to(tl.int32)
    return tl.sum(found, axis=1)


@triton.jit
def unpack(packed, counts, LANES: tl.constexpr, GROUP: tl.constexpr, DEPTH: tl.constexpr):
    """[THREADS, DEPTH] float32, what `pack` stored; -inf after the last one of a warp."""
    WARPS: tl.constexpr = LANES // GROUP // 32
    places = tl.arange(0, 32)[None, :, None] * DEPTH + tl.arange(0, DEPTH)[None, None, :]
    shares = tl.arange(0, WARPS)[:, None, None] * (32 * DEPTH)
    logits = tl.load(packed + shares + places, mask=places < counts[:, None, None], other=-float("inf"))
    return tl.reshape(logits.to(tl.float32), (WARPS * 32, DEPTH))
