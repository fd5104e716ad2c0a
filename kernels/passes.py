"""Launches the two passes over a round, for verification and for a plain draw alike: a draw is a round without drafts.

    first pass    kernels.row_stats       reads every target row that matters, judges and decides
    second pass   kernels.emission        reads the rows at the rejected position, draws the next token

Both are ordinary launches without host synchronisation, so that they can be captured in a CUDA graph.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from kernels.arguments import DraftRows, DraftTokens, Output, RoundState, RowBuffers, StreamState, TargetRows
from kernels.contract import Sampling, Streams, VerificationMethod
from kernels.emission import _emission_kernel
from kernels.row_stats import _row_stats_kernel
from kernels.truncation import _truncated_rows_kernel
from kernels.workspace import CHUNK, Shape, Workspace

Method = VerificationMethod
STOPS_AT_FIRST_FAILURE = frozenset(set(Method) - {Method.block})
FIRST_PASS = {"UNROLL": 4, "num_warps": 4}
SECOND_PASS = {"UNROLL": 8}
"""Steps of a program's loop that are loaded together, and its warps, each of which reads a chunk."""
FEW_REQUESTS = 64
"""Up to this many the second pass runs with 4 warps, which meet sooner; beyond it with 8, which need fewer registers.
These numbers were chosen by measurement on an H200. Limits on registers (maxnreg) stand where the compiler, aiming at
one more program in a multiprocessor, would spill a few bytes otherwise."""
PROGRAMS_AT_ONCE = 4096
MOST_SETS = 2
"""A program of the first pass reads more sets of chunks than one when there are this many times as many programs."""
TRUNCATING_PASS = {"UNROLL": 4}
TRUNCATING_PROGRAMS = 132
"""Rows in work at once when thresholds are searched for, one for each multiprocessor: they stay in the L2 cache."""
LANES = 4096
"""Tokens that such a program reads at a time."""
DEPTH = 16
"""Candidates that a thread of it can keep for each of its groups of tokens."""
UNUSED_LOW_BITS = {torch.bfloat16: 16, torch.float16: 13, torch.float32: 0}
"""Low bits of a float32 that are always 0 when it comes from the given type."""


class Round(NamedTuple):
    """The arguments of both passes."""

    target: TargetRows
    draft: DraftRows
    tokens: DraftTokens
    sampling: Sampling
    streams: StreamState
    rule: Tensor
    rows: RowBuffers
    state: RoundState
    output: Output
    shape: Shape
    workspace: Workspace


def stream_state(streams: Streams) -> StreamState:
    return StreamState(streams.seeds, streams.positions, streams.rounds)


def no_draft() -> DraftRows:
    """One-hot proposals: there is nothing to read."""
    return DraftRows(None, 0, 0, 0, None, None, None, None, None, 0, 0)


def _sets(num_programs: int) -> int:
    """Sets of chunks that one program reads in turn: several when there are programs enough to fill a GPU anyway."""
    return max(1, min(MOST_SETS, num_programs // PROGRAMS_AT_ONCE))


def capability() -> int:
    """Compute capability of the GPU times ten; 0 in Triton's interpreter, and where it is none of NVIDIA's."""
    if not isinstance(_row_stats_kernel, JITFunction):
        return 0
    target = driver.active.get_current_target()
    return target.arch if target.backend == "cuda" else 0


def overlaps() -> bool:
    """Whether the second pass may start its programs while the first one ends (programmatic dependent launch)."""
    return capability() >= 90


def first_pass(round_: Round, method: Method) -> None:
    """Read the target rows, judge the draft tokens, decide how many are accepted."""
    shape = round_.shape
    if shape.num_requests == 0:
        return
    shared = {
        "METHOD": method.value,
        "SKIPS": method in STOPS_AT_FIRST_FAILURE and shape.width > 0,
        "READS_DRAFT": round_.draft.logits is not None,
        "WIDTH_PADDED": triton.next_power_of_2(shape.width + 1),
        "OVERLAPS": overlaps(),
    }
    if round_.sampling.truncates:
        _truncated_first_pass(round_, shared)
        return
    parts = FIRST_PASS["num_warps"]
    sets = _sets(shape.num_rows * triton.cdiv(shape.num_chunks, parts))
    num_groups = triton.cdiv(shape.num_chunks, parts * sets)
    drafted = int(shape.width > 0)
    _row_stats_kernel[((num_groups + drafted) * shape.num_requests, shape.width + 1)](
        round_.target,
        round_.draft,
        round_.tokens,
        round_.sampling.temperature,
        round_.streams,
        round_.rule,
        round_.rows,
        round_.state,
        round_.output,
        DRAFTED=drafted,
        NUM_GROUPS=num_groups,
        SETS=sets,
        PARTS=parts,
        CHUNK=CHUNK,
        GROUP=16 // round_.target.logits.element_size(),
        CHUNKS_PADDED=triton.next_power_of_2(shape.num_chunks),
        maxnreg=88 if method is Method.block else None,
        **shared,
        **FIRST_PASS,
    )


def _truncated_first_pass(round_: Round, shared: dict[str, Any]) -> None:
    """The same with a search for the threshold of each row."""
    sampling, logits = round_.sampling, round_.target.logits
    num_rows = round_.shape.num_rows
    num_programs = min(num_rows, TRUNCATING_PROGRAMS)
    group = 16 // logits.element_size()
    _truncated_rows_kernel[(num_programs,)](
        round_.target,
        round_.draft,
        round_.tokens,
        (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p),
        round_.streams,
        round_.rule,
        round_.rows,
        round_.state,
        round_.output,
        round_.workspace.buffer(
            f"candidates_{logits.dtype}", num_programs * (LANES // group) * DEPTH, logits.dtype, logits.device
        ),
        num_rows,
        num_programs,
        SHIFT=UNUSED_LOW_BITS[logits.dtype],
        LANES=LANES,
        GROUP=group,
        DEPTH=DEPTH,
        # 16 warps leave 128 registers to a thread: too few for the race of coupled noise, and on other generations.
        num_warps=16 if capability() == 90 and shared["METHOD"] != Method.coupled.value else 8,
        **shared,
        **TRUNCATING_PASS,
    )


def second_pass(round_: Round, method: Method, purpose: int = 0) -> None:
    """Draw each request's next token.

    Args:
        round_: after the first pass.
        method: the rule.
        purpose: stream of the token; 0 means the residual's after a rejection and else the bonus stream.
    """
    shape = round_.shape
    reads_draft, truncates = round_.draft.logits is not None, round_.sampling.truncates
    parts = 4 if shape.num_requests <= FEW_REQUESTS else 8
    # Where no row is summed, one program a request does: the masses are known from the first pass.
    sums = reads_draft or truncates or method is Method.pr35461
    num_groups = triton.cdiv(shape.num_chunks, parts) if sums else 1
    if shape.num_requests == 0:
        return
    _emission_kernel[(num_groups * shape.num_requests, shape.num_positions)](
        round_.target,
        round_.draft,
        round_.tokens,
        round_.sampling.temperature,
        round_.streams,
        round_.rows,
        round_.state,
        round_.output,
        purpose,
        METHOD=method.value,
        READS_DRAFT=reads_draft,
        TRUNCATED=truncates,
        NUM_GROUPS=num_groups,
        PARTS=parts,
        CHUNK=CHUNK,
        GROUP=16 // round_.target.logits.element_size(),
        CHUNKS_PADDED=triton.next_power_of_2(shape.num_chunks),
        WIDTH_PADDED=triton.next_power_of_2(shape.width + 1),
        OVERLAPS=overlaps(),
        launch_pdl=overlaps(),
        num_warps=parts,
        maxnreg=128 if parts == 4 and not truncates else None,
        **SECOND_PASS,
    )
