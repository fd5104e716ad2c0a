"""How harness.models.fused.slot_attention cuts its work: tiles of queries, blocks of keys, programs that share them.

Times are of an H200: of a layer of Llama-3-8B in a CUDA graph of eight, each with a cache of its own, unless said
otherwise.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
from triton import knobs
from triton.runtime import driver

NUM_PROGRAMS = 132
"""Programs that keys are shared out for, one for each multiprocessor of an H100 or H200; shares are rounded down,
because programs beyond these would run when the first ones have ended. us on an H200 for 1 / 4 / 6 tokens a row, with
16 slots of 256 keys and 8 key heads, combine_splits included: 8.7 / 11.9 / 11.8; with two programs a multiprocessor
10.8 / 12.3 / 13.1, with three 11.4 / 15.1 / 16.5."""
MAX_SPLITS = 64
"""Programs that share a row's keys at most: a program of the second kernel holds all their results in registers."""
MIN_ROWS = 16
"""Rows of the smallest tile of queries that tensor cores multiply."""
MIN_SAVED = 580
"""Positions of a slot that sharing must spare each program before the keys of a full tile of queries are shared out:
with fewer, combine_splits takes longer than sharing saves. Groups of rows of prompts have full tiles. A layer with 16
slots of 4 tokens beside a prompt of 128, in slots of 1,152 positions, with 4 warps a program: 188.1 us, and 192.2 where
two programs share."""


class Blocks(NamedTuple):
    """How a program reads keys and values."""

    num_bytes: int
    """Of a block of keys, and of one of values, in the type of the queries."""
    num_stages: int
    """Blocks in work: one that is computed with, the others under way."""


PLAIN_BLOCKS = Blocks(16384, 3)
"""Two blocks of keys and of values, 64 KiB, are under way; two programs fit in the shared memory of a multiprocessor,
and one where that has 99 KiB. Reading 4.2 TB/s at a latency of about 1 us takes 32 KiB under way in each of 132
multiprocessors."""
LARGE_BLOCKS = Blocks(32768, 3)
"""Where each multiprocessor has one program. A layer of 16 slots, us with plain blocks, and with large ones and 4 or 8
warps:

    tokens a row                          128 to 384 keys                    828 to 1,084 keys
    1                              125.2, 130.7   129.1   129.1     141.0, 138.9   140.7   140.3
    4                              137.8, 139.6   134.5   134.9     157.5, 157.8   147.0   146.5
    6                              149.3, 150.2   148.0   147.3     169.1, 169.2   162.1   159.6
    4, beside a prompt of 128      195.9, 197.3   192.2   193.0

Plain blocks were timed first and last, the faster of two graphs each; the first case of all, 125.2, before the clock
had settled."""
MANY_WARPS = 8
"""Of a program with large blocks and more than the smallest tile, and of one with a full tile where shared memory is
small: with 4 they spill."""
MORE_BLOCKS = Blocks(16384, 4)
"""Where a multiprocessor has several programs, of the smallest tiles. 64 slots, us with plain blocks (first and last),
these and large ones: 148.8 to 150.4, 149.0 and 151.9 with one token a row, 213.3 to 219.9, 216.2 and 217.9 with 4; with
700 keys more 197.4, 191.8 and 193.3, 265.7, 259.1 and 261.2."""
LARGE_MEMORY = (9, 10)
"""Major versions of GPUs that have 227 KiB of shared memory; others have plain blocks."""


class Budget(NamedTuple):
    """What a program of a type may hold."""

    tile_size: int
    """Components of a tile of queries; more queries than that take another program, which reads the keys again."""
    max_keys: int
    """Keys of a block: with narrow heads, more would make short rows one block, which cannot be shared out."""
    num_warps: int
    num_registers: int
    """Of a thread, where two programs share a multiprocessor. Shared memory has room for no more than two, yet the
    compiler would spill a few bytes to let others in."""


BUDGETS = {2: Budget(8192, 128, 4, 255), 4: Budget(2048, 64, 8, 128)}
"""By bytes of a component. 64 rows of width 128 are 64 registers of a thread where the result is kept, in float32.
Tensor cores would round float32; the operands of ordinary arithmetic take registers too, so its tiles are smaller."""


class Tiling(NamedTuple):
    """How the work of a call is cut; a function of shapes alone."""

    rows: int
    """Queries of a tile, padded to a power of two."""
    num_tiles: int
    """Tiles of queries of a row and key head."""
    block: int
    """Keys of a block."""
    num_splits: int
    """P."""
    num_stages: int
    """Blocks in work."""
    num_warps: int


def tiling_of(
    num_rows: int,
    num_key_heads: int,
    num_folded: int,
    width: int,
    capacity: int,
    itemsize: int,
    has_large_memory: bool,
) -> Tiling:
    """How a call is cut.

    Args:
        num_rows, num_key_heads, width, capacity: R, Hk, D, C.
        num_folded: T * G queries that share a key head.
        itemsize: bytes of a component of the queries.
        has_large_memory: whether programs may have the shared memory of LARGE_MEMORY.
    """
    budget = BUDGETS[itemsize]
    max_rows = max(MIN_ROWS, budget.tile_size // width)
    rows = min(max_rows, max(MIN_ROWS, triton.next_power_of_2(num_folded)))
    num_tiles = triton.cdiv(num_folded, rows)
    wanted = NUM_PROGRAMS // (num_rows * num_key_heads * num_tiles)
    blocks, num_warps = PLAIN_BLOCKS, budget.num_warps
    if has_large_memory and itemsize == 2:
        if wanted:
            blocks, num_warps = LARGE_BLOCKS, num_warps if rows == MIN_ROWS else MANY_WARPS
        elif rows == MIN_ROWS:
            blocks = MORE_BLOCKS
    elif MIN_ROWS < rows == max_rows:
        num_warps = MANY_WARPS
    block = max(MIN_ROWS, min(budget.max_keys, blocks.num_bytes // (width * itemsize)))
    num_splits = max(1, min(wanted, MAX_SPLITS, triton.cdiv(capacity, block)))
    if MIN_ROWS < rows == max_rows and capacity - capacity // num_splits < MIN_SAVED:
        num_splits = 1
    return Tiling(rows, num_tiles, block, num_splits, blocks.num_stages, num_warps)


def has_large_memory() -> bool:
    """Whether the GPU that kernels are compiled for has large shared memory; Triton's interpreter stands for one."""
    if knobs.runtime.interpret:
        return True
    target = driver.active.get_current_target()
    return target.backend == "cuda" and target.arch // 10 in LARGE_MEMORY
