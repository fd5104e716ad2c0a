"""Launches the passes over a round, for verification and for a plain draw alike: a draw is a round without drafts.

    first pass    kernels.chain.row_reduce    reads every target row that matters, tests the draft tokens and decides
    second pass   kernels.chain.residual_sample   reads the rows at the rejected position, draws the next token

With few requests the first pass only sums, and the second is kernels.chain.small_batch, which decides too.
Where the first pass leaves nothing to be summed (`Round.sums`) it draws the next token itself, and is the only launch.
In a mixed batch (`Sampling.is_mixed`) the requests that cut nothing get these launches, and then those that cut: each
kind costs what it costs alone, and the programs of the other kind, which end at once (one or two launches more).
All are ordinary launches without host synchronisation, so that they can be captured in a CUDA graph.
"""

from __future__ import annotations

from typing import Any

import torch
import triton

from ..launch.register_limits import (
    residual_sample_registers,
    row_reduce_registers,
    small_batch_registers,
    truncated_pass_registers,
)
from ..launch.workspace import SHORT_CHUNK
from ..methods import VerificationMethod
from ..methods.hooks import COUPLED, OWN, Hooks, hooks_of
from .launch_args import Round, capability
from .residual_sample import _residual_sample_kernel
from .row_reduce import _row_reduce_kernel
from .small_batch import _small_batch_kernel, decides_late, late_program
from .truncation import _truncated_rows_kernel

FIRST_PASS_WARPS = 4
"""Of a program; each reads a chunk."""
COUNT_UNROLL, RACE_UNROLL, FIRST_PASS_UNROLL = 8, 2, 4
"""Steps of a program's loop in the first pass that are loaded together: of rules that count, of coupled noise, of
others."""
SECOND_PASS_UNROLL, LADEN_UNROLL = 8, 4
"""Steps of a program's loop in the second pass that are loaded together; the second where masks are loaded too, or rows
are put together from words."""
FEW_REQUESTS = 64
"""Up to this many the second pass runs with 4 warps, which meet sooner; beyond with 8, which take fewer registers."""
MANY_PROGRAMS, MANY_DRAWING_PROGRAMS = 8192, 4096
"""From so many on a program of the first pass reads two sets of chunks instead of one: fewer begin and end."""
SMALL_GRID = 512
"""Up to this many programs of a first pass do not saturate the memory: they prefetch their rows, unless they load the
first steps of a round with drafts early."""
EARLY_STEPS = 4
"""Steps of a chunk that a program loads before it knows anything of its request; for nothing in a padded slot, or
beyond the count. 64 draws take 19.3 us instead of 20.6 (H100). The code for other generations spills."""
SHORT_GROUP = 2
"""Tokens of a group in the search of a row that is one short chunk: few tokens for a thread."""
FEW_ROWS = 132
"""Up to this many rows that may be cut, one for each multiprocessor, a program has 16 warps; beyond it 8, and a
multiprocessor two programs."""
MAX_CANDIDATES = 4096
"""Tokens of a row among which its threshold is looked for, at most."""
UNUSED_LOW_BITS = {torch.bfloat16: 16, torch.float16: 13, torch.float32: 0}
"""Low bits of a float32 that are always 0 when it comes from the given type."""


def overlaps() -> bool:
    """Whether the second pass may start its programs while the first one ends (programmatic dependent launch)."""
    return capability() >= 90


def launch(round_: Round) -> None:
    """Decide how many draft tokens of each request are accepted, and draw the token after them."""
    if round_.shape.num_requests == 0:
        return
    if decides_late(round_):
        _row_reduce(round_, emits=False, is_followed=True, decides=False)
        _small_batch(round_)
        return
    for kind in round_.kinds:
        _row_reduce(kind, emits=not kind.sums, is_followed=kind.sums)
        if kind.sums:
            _residual_sample(kind)


def read_rows(round_: Round) -> None:
    """Only leave the statistics of the rows; no token is drawn."""
    for kind in round_.kinds if round_.shape.num_requests > 0 else ():
        _row_reduce(kind, emits=False, is_followed=False)


def _row_reduce(round_: Round, emits: bool, is_followed: bool, decides: bool = True) -> None:
    """Read the target rows, test the draft tokens, decide how many are accepted.

    Args:
        round_: the arguments.
        emits: draw the next token too.
        is_followed: by a second pass, which may start its programs while this one ends.
        decides: False only sums the rows, for the deciding pass.
    """
    shape, hooks, traits, logits = round_.shape, round_.hooks, round_.traits, round_.target.logits
    shared = {
        "METHOD": hooks,
        "SKIPS": traits.stops_at_first_failure and not traits.defers and shape.width > 0 and decides,
        "READS_DRAFT": round_.draft.logits is not None,
        "CHUNK": shape.chunk,
        "CHUNKS_PADDED": shape.chunks_padded,
        "WIDTH_PADDED": triton.next_power_of_2(shape.width + 1),
        "EMITS": emits,
        "EMITS_FROM_TARGET": traits.emits_from_target,
        "OVERLAPS": is_followed and overlaps(),
    }
    if round_.truncates:
        _truncated_rows(round_, shared)
        return
    is_short = shape.chunk == SHORT_CHUNK
    parts = FIRST_PASS_WARPS
    if is_short or not emits:
        # A row of few chunks has no work for more; but to draw from a long chunk takes them all.
        parts = min(parts, shape.chunks_padded)
    drafted = int(shape.width > 0)
    apart = int(drafted and not is_short and decides)
    many = MANY_PROGRAMS if drafted else MANY_DRAWING_PROGRAMS
    is_many = shape.num_rows * triton.cdiv(shape.num_chunks, parts) >= many
    sets = 2 if is_many and shape.num_chunks > parts else 1
    num_groups = triton.cdiv(shape.num_chunks, parts * sets)
    group = 16 // logits.element_size()
    sums_drafts = int(shape.sums_drafts)
    num_programs = (num_groups * (1 + sums_drafts) + apart) * shape.num_requests
    num_steps = shape.chunk // (32 * group)
    is_small = num_programs * (shape.width + 1) <= SMALL_GRID and capability() > 0 and not is_short
    is_early = sets == 1 and _may_load_early(round_, decides)
    _row_reduce_kernel[(num_programs, shape.width + 1)](
        round_.target,
        round_.draft,
        round_.tokens,
        round_.sampling.temperature,
        round_.cutting,
        round_.streams,
        round_.rule,
        round_.rows,
        round_.state,
        round_.output,
        round_.purpose,
        DRAFTED=drafted,
        APART=apart,
        SUMS_DRAFTS=sums_drafts,
        DECIDES=decides,
        IS_SMALL=is_small and not (is_early and drafted),
        NUM_GROUPS=num_groups,
        SETS=sets,
        PARTS=parts,
        GROUP=group,
        UNROLL=min(_row_reduce_unroll(hooks) if decides else FIRST_PASS_UNROLL, num_steps),
        EARLY=min(EARLY_STEPS, num_steps) if is_early else 0,
        num_warps=parts,
        # A pass that only sums is the same for all methods.
        maxnreg=row_reduce_registers(
            hooks if decides else hooks_of(VerificationMethod.strict), round_.row_traits, emits, capability(), is_early
        ),
        **shared,
    )


def _row_reduce_unroll(hooks: Hooks) -> int:
    if hooks.count is not None:
        return COUNT_UNROLL
    return RACE_UNROLL if hooks.noise == COUPLED else FIRST_PASS_UNROLL


def _may_load_early(round_: Round, decides: bool) -> bool:
    """Whether the address of a row takes nothing from memory, and every program of the first pass has one to read."""
    target, shape = round_.target, round_.shape
    if not target.is_aligned or target.first_rows is not None or shape.sums_drafts or len(round_.kinds) > 1:
        return False
    return capability() in (0, 90) and round_.hooks.noise != COUPLED and not (shape.width > 0 and decides)


def _truncated_rows(round_: Round, shared: dict[str, Any]) -> None:
    """The same with a search for the threshold of each row."""
    sampling, logits = round_.sampling, round_.target.logits
    num_rows = round_.shape.num_rows
    is_short = round_.shape.chunk == SHORT_CHUNK
    group = SHORT_GROUP if is_short else 16 // logits.element_size()
    is_aligned = round_.target.is_aligned
    # 128 registers of a thread are too few for the Gumbel argmax of coupled noise, for a rule's own statistic, for rows
    # that are put together from words, for masks, and on other generations.
    needs_more = round_.hooks.noise == COUPLED or round_.hooks.statistic == OWN
    is_light = capability() == 90 and is_aligned and not round_.is_masked and not needs_more
    # Two programs of float32 rows would spill.
    is_alone = num_rows <= FEW_ROWS or logits.dtype == torch.float32
    max_warps = 16 if is_light and is_alone else 8
    # A short row takes no more than read it at once: many of its programs then share a multiprocessor.
    num_warps = min(max_warps, triton.next_power_of_2(triton.cdiv(round_.shape.vocab_size, 32 * group)))
    num_threads = num_warps * 32
    # All of a small row.
    num_candidates = min(MAX_CANDIDATES, triton.next_power_of_2(round_.shape.vocab_size))
    depth = max(1, num_candidates // num_threads)
    _truncated_rows_kernel[(num_rows,)](
        round_.target,
        round_.draft,
        round_.tokens,
        (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p),
        round_.cutting,
        round_.streams,
        round_.rule,
        round_.rows,
        round_.state,
        round_.output,
        round_.workspace.buffer(
            f"candidates_{logits.dtype}", num_rows * num_threads * depth, logits.dtype, logits.device
        ),
        SHIFT=UNUSED_LOW_BITS[logits.dtype],
        LANES=num_threads * group,
        GROUP=group,
        DEPTH=depth,
        UNROLL=4 if is_aligned and not is_short else 1,
        num_warps=num_warps,
        maxnreg=truncated_pass_registers(is_short, is_light, num_warps, capability()),
        **shared,
    )


def _residual_sample(round_: Round) -> None:
    """Sum what the next tokens are drawn from, and draw them; after the first pass, where the round sums."""
    shape, truncates = round_.shape, round_.truncates
    parts = 4 if shape.num_requests <= FEW_REQUESTS or shape.num_chunks <= 4 else 8
    if shape.chunk == SHORT_CHUNK:
        parts = 1
    grid, shared = _second_launch(round_, parts)
    _residual_sample_kernel[grid](
        round_.target,
        round_.draft,
        round_.tokens,
        round_.sampling.temperature,
        round_.cutting,
        round_.streams,
        round_.rows,
        round_.state,
        round_.output,
        round_.purpose,
        round_.rule if round_.draws_by_rule else None,
        READS_DRAFT=round_.draft.logits is not None,
        TRUNCATED=truncates,
        maxnreg=residual_sample_registers(round_.hooks, round_.row_traits, truncates, parts, capability()),
        **shared,
    )


def _small_batch(round_: Round) -> None:
    """Decide, sum what the next tokens are drawn from, and draw them; after a first pass that only summed."""
    shape = round_.shape
    parts, num_warps = late_program(round_)
    spread = max(1, num_warps // parts)
    grid, shared = _second_launch(round_, parts)
    num_steps = shape.chunk // (32 * spread * shared["GROUP"])
    shared |= {"num_warps": num_warps, "UNROLL": min(shared["UNROLL"], num_steps)}
    _small_batch_kernel[grid](
        round_.target,
        round_.draft,
        round_.tokens,
        round_.sampling.temperature,
        round_.streams,
        round_.rule,
        round_.rows,
        round_.state,
        round_.output,
        round_.purpose,
        SUMS_DRAFTS=int(shape.sums_drafts),
        SPREAD=spread,
        maxnreg=small_batch_registers(round_.row_traits, shape.num_requests, num_warps, capability()),
        **shared,
    )


def _second_launch(round_: Round, parts: int) -> tuple[tuple[int, int], dict[str, Any]]:
    """Grid and settings that both kinds of second pass share.

    Args:
        round_: the arguments.
        parts: chunks that a program weighs; of the settings a warp for each is the second pass's.
    """
    shape, traits = round_.shape, round_.row_traits
    # a step of a laden row loads more than tokens
    is_laden = traits.is_masked or traits.joins or traits.has_lead
    unroll = LADEN_UNROLL if is_laden else SECOND_PASS_UNROLL
    settings = shape.chunk_settings(parts, round_.target.logits.dtype, unroll)
    shared = settings | {
        "METHOD": round_.hooks,
        "WIDTH_PADDED": triton.next_power_of_2(shape.width + 1),
        "OVERLAPS": overlaps(),
        "launch_pdl": overlaps(),
    }
    return (settings["NUM_GROUPS"] * shape.num_requests, shape.num_positions), shared
