"""Launches the passes over a round, for verification and for a plain draw alike: a draw is a round without drafts.

    first pass    kernels.first_pass    reads every target row that matters, tests the draft tokens and decides
    second pass   kernels.second_pass   reads the rows at the rejected position, draws the next token

Where the first pass leaves nothing to be summed (`Round.sums`) it draws the next token itself, and is the only launch.
In a mixed batch (`Sampling.is_mixed`) the requests that cut nothing get these launches, and then those that cut: each
kind costs what it costs alone, and the programs of the other kind, which end at once (one or two launches more).
All are ordinary launches without host synchronisation, so that they can be captured in a CUDA graph.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from .arguments import DraftRows, DraftTokens, Output, RoundState, RowBuffers, StreamState, TargetRows
from .contract import Sampling, Streams, VerificationMethod
from .first_pass import _first_pass_kernel
from .register_limits import RowTraits, first_pass_registers, second_pass_registers, truncated_pass_registers
from .second_pass import _second_pass_kernel
from .truncation import _truncated_rows_kernel
from .workspace import SHORT_CHUNK, Shape, Workspace

Method = VerificationMethod
FIRST_PASS_WARPS = 4
"""Of a program; each reads a chunk."""
FIRST_PASS_UNROLLS = {Method.block: 8, Method.coupled: 2}
"""Steps of a program's loop in the first pass that are loaded together, where it is not 4."""
SECOND_PASS_UNROLL, LADEN_UNROLL = 8, 4
"""Steps of a program's loop in the second pass that are loaded together; the second where masks are loaded too, or rows
are put together from words."""
FEW_REQUESTS = 64
"""Up to this many the second pass runs with 4 warps, which meet sooner; beyond it with 8, which need fewer registers.
These numbers were chosen by measurement on an H200."""
MANY_PROGRAMS, MANY_DRAWING_PROGRAMS = 8192, 4096
"""From so many on a program of the first pass reads two sets of chunks instead of one: fewer begin and end."""
DEPTH = 4
"""Groups of 16 bytes for which there is room in one window for each thread of it, and tokens."""
SHORT_GROUP, SHORT_DEPTH = 2, 1
"""Tokens of a group, and the same room, for the search in a row that is one short chunk: few tokens for a thread."""
UNUSED_LOW_BITS = {torch.bfloat16: 16, torch.float16: 13, torch.float32: 0}
"""Low bits of a float32 that are always 0 when it comes from the given type."""


class Round(NamedTuple):
    """The arguments of both passes."""

    method: Method
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
    purpose: int = 0
    """Stream of the next token; 0 means the residual's after a rejection and else the bonus stream."""
    serves: bool | None = None
    """Only the requests that cut (True), or only those that do not; None: all."""

    @property
    def truncates(self) -> bool:
        """Whether a request that it serves may cut."""
        return self.sampling.truncates and self.serves is not False

    @property
    def cutting(self) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """What tells the two kinds of requests apart in a kernel; see kernels.conclude.served_count."""
        sampling = self.sampling
        return (None, None, None) if self.serves is None else (sampling.top_k, sampling.top_p, sampling.min_p)

    @property
    def kinds(self) -> list[Round]:
        """The round as it is launched: once for all requests, or for those that cut nothing and for those that cut."""
        if not (self.sampling.truncates and self.sampling.is_mixed):
            return [self]
        return [self._replace(serves=False), self._replace(serves=True)]

    @property
    def is_masked(self) -> bool:
        """Whether any row may have a mask."""
        return self.target.mask_words is not None or self.draft.mask_words is not None

    @property
    def row_traits(self) -> RowTraits:
        """How its rows are read."""
        target, draft = self.target, self.draft
        return RowTraits(
            dtype=target.logits.dtype,
            is_aligned=target.is_aligned,
            has_lead=target.lead is not None,
            joins=target.lead is None and (target.in_words is not None or draft.in_words is not None),
            is_short=self.shape.chunk == SHORT_CHUNK,
            is_masked=self.is_masked,
            is_mapped=draft.to_draft_ids is not None or self.output.to_target_ids is not None,
        )

    @property
    def sums(self) -> bool:
        """Whether weights of the next token must be summed once the round is decided, which takes a second pass.

        Not where it comes from a target row that nothing is cut from, or from such a row without one token: the sums
        of the first pass give its law. Nor where coupled noise decides: its winner is known with the row.
        """
        if self.method is Method.coupled:
            return False
        return self.draft.logits is not None or self.truncates or self.method is Method.pr35461


def stream_state(streams: Streams) -> StreamState:
    return StreamState(streams.seeds, streams.positions, streams.rounds)


def no_draft() -> DraftRows:
    """One-hot proposals: there is nothing to read."""
    return DraftRows(None, 0, 0, 0, None, None, None, None, None, None, 0, 0)


def capability() -> int:
    """Compute capability of the GPU times ten; 0 in Triton's interpreter, and where it is none of NVIDIA's."""
    if not isinstance(_first_pass_kernel, JITFunction):
        return 0
    target = driver.active.get_current_target()
    return target.arch if target.backend == "cuda" else 0


def overlaps() -> bool:
    """Whether the second pass may start its programs while the first one ends (programmatic dependent launch)."""
    return capability() >= 90


def launch(round_: Round) -> None:
    """Decide how many draft tokens of each request are accepted, and draw the token after them."""
    if round_.shape.num_requests == 0:
        return
    for kind in round_.kinds:
        _first_pass(kind, emits=not kind.sums, is_followed=kind.sums)
        if kind.sums:
            _second_pass(kind)


def read_rows(round_: Round) -> None:
    """Only leave the statistics of the rows; no token is drawn."""
    for kind in round_.kinds if round_.shape.num_requests > 0 else ():
        _first_pass(kind, emits=False, is_followed=False)


def _first_pass(round_: Round, emits: bool, is_followed: bool) -> None:
    """Read the target rows, test the draft tokens, decide how many are accepted.

    Args:
        round_: the arguments.
        emits: draw the next token too.
        is_followed: by a second pass, which may start its programs while this one ends.
    """
    shape, method, logits = round_.shape, round_.method, round_.target.logits
    shared = {
        "METHOD": method.value,
        "SKIPS": method.traits.stops_at_first_failure and shape.width > 0,
        "READS_DRAFT": round_.draft.logits is not None,
        "CHUNK": shape.chunk,
        "CHUNKS_PADDED": triton.next_power_of_2(shape.num_chunks),
        "WIDTH_PADDED": triton.next_power_of_2(shape.width + 1),
        "EMITS": emits,
        "EMITS_FROM_TARGET": method.traits.emits_from_target,
        "OVERLAPS": is_followed and overlaps(),
    }
    if round_.truncates:
        _truncated_first_pass(round_, shared)
        return
    is_short = shape.chunk == SHORT_CHUNK
    parts = FIRST_PASS_WARPS
    if is_short or not emits:
        # A row of few chunks has no work for more; but to draw from a long chunk takes them all.
        parts = min(parts, triton.next_power_of_2(shape.num_chunks))
    drafted = int(shape.width > 0)
    apart = int(drafted and not is_short)
    many = MANY_PROGRAMS if drafted else MANY_DRAWING_PROGRAMS
    is_many = shape.num_rows * triton.cdiv(shape.num_chunks, parts) >= many
    sets = 2 if is_many and shape.num_chunks > parts else 1
    num_groups = triton.cdiv(shape.num_chunks, parts * sets)
    group = 16 // logits.element_size()
    sums_drafts = int(shape.sums_drafts)
    num_programs = (num_groups * (1 + sums_drafts) + apart) * shape.num_requests
    _first_pass_kernel[(num_programs, shape.width + 1)](
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
        NUM_GROUPS=num_groups,
        SETS=sets,
        PARTS=parts,
        GROUP=group,
        UNROLL=min(FIRST_PASS_UNROLLS.get(method, 4), shape.chunk // (32 * group)),
        num_warps=parts,
        maxnreg=first_pass_registers(method, round_.row_traits, capability()),
        **shared,
    )


def _truncated_first_pass(round_: Round, shared: dict[str, Any]) -> None:
    """The same with a search for the threshold of each row."""
    sampling, logits = round_.sampling, round_.target.logits
    num_rows = round_.shape.num_rows
    is_short = round_.shape.chunk == SHORT_CHUNK
    group = SHORT_GROUP if is_short else 16 // logits.element_size()
    depth = SHORT_DEPTH if is_short else DEPTH
    is_aligned = round_.target.is_aligned
    # 16 warps leave 128 registers to a thread: too few for the Gumbel argmax of coupled noise, for rows that
    # are put together from words, for masks, and on other generations.
    is_light = round_.method is not Method.coupled and is_aligned and not round_.is_masked
    max_warps = 16 if capability() == 90 and is_light else 8
    # A short row takes no more than read it at once: many of its programs then share a multiprocessor.
    num_warps = min(max_warps, triton.next_power_of_2(triton.cdiv(round_.shape.vocab_size, 32 * group)))
    num_threads = num_warps * 32
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
        maxnreg=truncated_pass_registers(is_short, num_warps, capability()),
        **shared,
    )


def _second_pass(round_: Round) -> None:
    """Sum what the next tokens are drawn from, and draw them; after the first pass, where the round sums."""
    shape, truncates = round_.shape, round_.truncates
    parts = 4 if shape.num_requests <= FEW_REQUESTS or shape.num_chunks <= 4 else 8
    if shape.chunk == SHORT_CHUNK:
        parts = 1
    num_groups = triton.cdiv(shape.num_chunks, parts)
    group = 16 // round_.target.logits.element_size()
    traits = round_.row_traits
    is_laden = traits.is_masked or traits.joins or traits.has_lead
    _second_pass_kernel[(num_groups * shape.num_requests, shape.num_positions)](
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
        METHOD=round_.method.value,
        READS_DRAFT=round_.draft.logits is not None,
        TRUNCATED=truncates,
        NUM_GROUPS=num_groups,
        PARTS=parts,
        CHUNK=shape.chunk,
        GROUP=group,
        UNROLL=min(LADEN_UNROLL if is_laden else SECOND_PASS_UNROLL, shape.chunk // (32 * group)),
        CHUNKS_PADDED=triton.next_power_of_2(shape.num_chunks),
        WIDTH_PADDED=triton.next_power_of_2(shape.width + 1),
        OVERLAPS=overlaps(),
        launch_pdl=overlaps(),
        num_warps=parts,
        maxnreg=second_pass_registers(round_.method, traits, truncates, parts, capability()),
    )
