"""How many registers a thread of each pass may use (maxnreg): it decides how many programs a multiprocessor holds.

The compiler's own choice turns on parts of a kernel that a program runs once, if at all: left alone it takes 32 for a
loop that then waits for one load after another, or 64 where 48 do. A limit also gives leave to use that many. For sm_90
they were chosen by measurement (results/kernel_bench_h200/NOTES.md), but for pr35461, fly, truncated rows, masks and
rows in words; the others so that a loop issues its loads together. With none of them anything spills under Triton 3.7,
which the compile check watches, but block's second pass over float32 rows in words that may be cut: 12 bytes. Under
3.6 some variants do. Of the 65,536 registers of a multiprocessor, programs of 4 warps find room for 10 at 48, 6 at 80,
4 at 128, 3 at 168; programs of 8 warps for 4 at 64.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from ..methods.hooks import COUPLED, ENTROPY, NONE, OWN, SHARED, Hooks

REGISTERS, WARPS = 65_536, 48
"""Of a multiprocessor; some have room for 64 warps."""


def programs_at_once(num_warps: int, registers: int) -> int:
    """Programs of a kernel that a multiprocessor is certain to hold together.

    Args:
        num_warps: of a program.
        registers: limit of a thread; a warp takes them in units of 8 for each.
    """
    of_warp = 32 * 8 * -(-registers // 8)
    # a multiprocessor has four parts, each with a quarter of the registers
    most_warps = min(WARPS, 4 * (REGISTERS // 4 // of_warp))
    return most_warps // num_warps


class RowTraits(NamedTuple):
    """How the rows of a launch are read."""

    dtype: torch.dtype
    """Of the target's logits."""
    is_aligned: bool
    """16 bytes at a time from their beginning."""
    has_lead: bool
    """16 bytes at a time from the word that they begin in; draft rows are put together then."""
    joins: bool
    """Some are put together from words."""
    is_short: bool
    """They are one short chunk, and the program that reads a row also prepares the test of its draft token."""
    is_masked: bool
    """Some may have a mask."""
    is_mapped: bool
    """Token ids of the drafter are those of a smaller vocabulary."""


def row_reduce_registers(hooks: Hooks, rows: RowTraits, emits: bool, capability: int, is_early: bool) -> int | None:
    """Limit for kernels.chain.row_reduce with up to 4 warps; None leaves the choice to the compiler.

    Args:
        hooks: of the rule.
        rows: how they are read.
        emits: it draws the next token.
        capability: of the GPU times ten.
        is_early: it loads its first steps early.
    """
    if hooks.noise == COUPLED and (rows.is_aligned or rows.is_short):
        # Left alone the compiler takes 128 for a smaller draft vocabulary or short rows, or 96 with masks, and spills.
        uncommon = rows.is_masked or rows.is_mapped or rows.is_short
        return 168 if uncommon else 80 if capability == 90 else 128
    if hooks.count is not None and not (rows.is_short and not rows.is_aligned):
        return _count_registers(rows, capability)
    if rows.has_lead:
        widest, narrowest = 128, 48 if not emits else 56 if capability <= 100 else 64
        if hooks.statistic != NONE:
            widest, narrowest = 168, 64 if hooks.statistic == ENTROPY else 80
        return widest if rows.dtype == torch.float32 else narrowest
    if rows.is_masked and rows.is_aligned:
        return 96
    if hooks.statistic == OWN and rows.is_aligned:
        # At 48 the code of one-hot drafts and of large vocabularies spills up to 20 bytes, at 64 that for sm_89 and
        # sm_100 8, at 80 that for sm_120.
        return 64 if capability == 90 else 96
    spills = rows.dtype == torch.float32 and capability >= 100
    # With 48 an early draw spills 8 bytes.
    narrowest = 56 if is_early and emits else 48
    return None if not rows.is_aligned or spills else narrowest


def _count_registers(rows: RowTraits, capability: int) -> int:
    """The same for rules that count, which keep more of a row."""
    if rows.is_masked or rows.is_short or capability != 90:
        # With 96 or 112 the code for other generations spills 16 bytes, with 80 that for short rows 4.
        return 168 if rows.is_masked and rows.joins else 128
    # Left alone the compiler takes 72 for float32 in words, and spills.
    return 80 if rows.is_aligned else 96


def residual_sample_registers(hooks: Hooks, rows: RowTraits, truncates: bool, num_warps: int, capability: int) -> int:
    """Limit for kernels.chain.residual_sample with up to 4 warps, or 8.

    Args:
        hooks: of the rule.
        rows: how they are read.
        truncates: a request may cut.
        num_warps: of a program.
        capability: of the GPU times ten.
    """
    is_wide = rows.dtype == torch.float32
    is_joint = hooks.count is not None
    if hooks.noise == SHARED:
        return 168 if num_warps <= 4 else 192
    if rows.is_masked:
        return 128 if not is_joint else 255 if num_warps <= 4 else 168
    if is_joint and not truncates:
        # At 168 the code of smaller draft vocabularies for sm_100 and sm_120 spills up to 48 bytes.
        narrow = 128 if not rows.has_lead or capability == 90 else 168 if capability < 90 else 224
        return narrow if not is_wide else 224 if rows.has_lead else 168 if rows.joins else 128
    if rows.joins:
        # At 168 the code that cuts spills up to 16 bytes for sm_89 and sm_120, at 80 that of block 12 for sm_90.
        least = 88 if is_joint else 80
        narrow, wide = (least, 128) if capability == 90 else (224, 224)
        return wide if is_wide else narrow
    return _common_second_registers(rows, num_warps, capability)


def _common_second_registers(rows: RowTraits, num_warps: int, capability: int) -> int:
    """The same where nothing takes more than the common variants do, but how rows are read."""
    is_wide = rows.dtype == torch.float32
    if rows.has_lead and (is_wide or rows.is_mapped):
        return 168
    if is_wide and capability >= 120:
        return 128
    return 80 if num_warps <= 4 else 64


def small_batch_registers(rows: RowTraits, num_requests: int, num_warps: int, capability: int) -> int:
    """Limit for kernels.chain.small_batch.

    Args:
        rows: how they are read.
        num_requests: of the round.
        num_warps: of a program, up to 8.
        capability: of the GPU times ten.
    """
    is_common = capability == 90 and rows.is_aligned and rows.dtype != torch.float32 and not rows.is_mapped
    if not is_common:
        return 255
    # 16 requests are one program of 8 warps for each multiprocessor, more are two.
    return 168 if num_warps <= 4 or num_requests <= 16 else 128


def truncated_pass_registers(is_short: bool, is_light: bool, num_warps: int, capability: int) -> int:
    """Limit for kernels.chain.truncation.

    Args:
        is_short: rows are one short chunk, read by up to 4 warps; longer ones take up to 16.
        is_light: 128 suffice.
        num_warps: of a program.
        capability: of the GPU times ten.
    """
    if is_short:
        # At 104 a multiprocessor has room for 19 programs of one warp, and for 8 at 255. The code of more warps spills
        # at 104, and so does that for other generations, which at 128 still spills a little.
        return 104 if num_warps == 1 and capability == 90 else 168
    # Without a limit the compiler may keep to half of that, and spill.
    return 128 if is_light else 255


def rejection_walk_registers(
    rows: RowTraits, weighs_ratios: bool, sums_drafts: bool, truncates: bool, is_mixed: bool, capability: int
) -> int:
    """Limit for kernels.tree.rejection_walk, of programs of up to 4 warps.

    Args:
        rows: how they are read.
        weighs_ratios: K-SEQ's, which keep the sums of several candidates (kernels.tree.kseq_ratio).
        sums_drafts: draft rows are summed too.
        truncates: a request may cut.
        is_mixed: it serves the requests of a batch that do not cut, beside some that do.
        capability: of the GPU times ten.
    """
    if rows.joins or rows.is_masked or rows.is_mapped or truncates:
        # two programs have room on a multiprocessor with 224 as with 255
        return 255
    if weighs_ratios:
        # At 168 the code for sm_80 and sm_89 spills up to 16 bytes, for sm_90 that of float16 8 and that which sums 12.
        spills = capability < 90 or (capability == 90 and (sums_drafts or rows.dtype == torch.float16))
        return 255 if spills else 168
    # at 128 the code of mixed batches spills 16 bytes
    if capability == 90 and rows.dtype != torch.float32 and not is_mixed:
        # four programs have room instead of three
        return 128
    # At 168 the code of float32 for sm_90 spills 4 bytes, and that for sm_120 8.
    return 255 if rows.dtype == torch.float32 or capability >= 120 else 168


def traversal_walk_registers(rows: RowTraits, truncates: bool, capability: int) -> int:
    """Limit for kernels.tree.traversal_walk, of programs of up to 4 warps; not chosen by measurement.

    Args:
        rows: how they are read.
        truncates: a request may cut.
        capability: of the GPU times ten.
    """
    if rows.joins or rows.is_masked or rows.is_mapped or truncates:
        return 255
    # At 168 the code of float32 spills 16 bytes, and that for sm_80 and sm_120 up to 20.
    return 255 if rows.dtype == torch.float32 or capability < 89 or capability >= 120 else 168


def draw_children_registers(is_aligned: bool, is_masked: bool, capability: int) -> int:
    """Limit for kernels.tree.draw_children, of programs of up to 4 warps; not chosen by measurement.

    Args:
        is_aligned: rows are read 16 bytes at a time from their beginning.
        is_masked: some may have a mask.
        capability: of the GPU times ten.
    """
    return 168 if capability == 90 or (is_aligned and not is_masked) else 224
