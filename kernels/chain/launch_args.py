"""The arguments of the passes over one round, and the GPU that they run on.

Verification and draws share them: a draw is a round without drafts.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from ..contract import Sampling, Streams
from ..launch.kernel_args import DraftRows, DraftTokens, Output, RoundState, RowBuffers, StreamState, TargetRows
from ..launch.register_limits import RowTraits
from ..launch.workspace import SHORT_CHUNK, Shape, Workspace
from ..methods import MethodTraits
from ..methods.hooks import COUPLED, SHARED, Hooks
from .row_reduce import _row_reduce_kernel


class Round(NamedTuple):
    """The arguments of both passes."""

    hooks: Hooks
    traits: MethodTraits
    """Both are the method's."""
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
    draws_by_rule: bool = False
    """The second pass needs the parameters of the rule."""

    @property
    def truncates(self) -> bool:
        """Whether a request that it serves may cut."""
        return self.sampling.truncates and self.serves is not False

    @property
    def cutting(self) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """What tells the two kinds of requests apart in a kernel; see kernels.chain.row_epilogue.served_count."""
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
        if self.hooks.noise == COUPLED:
            return False
        return self.draft.logits is not None or self.truncates or self.hooks.noise == SHARED


def stream_state(streams: Streams) -> StreamState:
    return StreamState(streams.seeds, streams.positions, streams.rounds)


def no_draft() -> DraftRows:
    """One-hot proposals: there is nothing to read."""
    return DraftRows(None, 0, 0, 0, None, None, None, None, None, None, 0, 0)


def capability() -> int:
    """Compute capability of the GPU times ten; 0 in Triton's interpreter, and where it is none of NVIDIA's."""
    if not isinstance(_row_reduce_kernel, JITFunction):
        return 0
    target = driver.active.get_current_target()
    return target.arch if target.backend == "cuda" else 0
