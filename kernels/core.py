"""The sampling core of a device: the Triton kernels on a GPU, the reference anywhere else.

Both have the same functions, streams and contract. The kernels are imported only where they run, so that a machine
without triton has a core too.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from kernels.contract import (
    Deferred,
    Draft,
    Drawn,
    RowStats,
    Sampling,
    Streams,
    TokenMask,
    Verification,
    VerificationResult,
)
from kernels.reference.logprobs import TopLogprobs
from kernels.streams import Purpose

if TYPE_CHECKING:
    from kernels.workspace import Workspace


class Verify(Protocol):
    """See kernels.reference.verify."""

    def __call__(
        self,
        target_logits: Tensor,
        draft: Draft,
        sampling: Sampling,
        verification: Verification,
        streams: Streams,
        *,
        mask: TokenMask | None = None,
    ) -> VerificationResult: ...


class Draw(Protocol):
    """See kernels.reference.draw."""

    def __call__(
        self,
        logits: Tensor,
        sampling: Sampling,
        streams: Streams,
        purpose: Purpose,
        draft_to_target: Tensor | None = None,
        row_stats: RowStats | None = None,
        *,
        mask: TokenMask | None = None,
    ) -> Drawn: ...


class CoupledDraw(Protocol):
    """See kernels.reference.coupled."""

    def __call__(
        self,
        logits: Tensor,
        sampling: Sampling,
        streams: Streams,
        vocab_size: int,
        draft_to_target: Tensor | None = None,
        *,
        mask: TokenMask | None = None,
    ) -> Drawn: ...


class Logprobs(Protocol):
    """See kernels.reference.logprobs."""

    def __call__(
        self,
        logits: Tensor,
        token_ids: Tensor,
        num_top: int,
        sampling: Sampling | None = None,
        mask: TokenMask | None = None,
    ) -> TopLogprobs: ...


class Defer(Protocol):
    """See kernels.defer."""

    def __call__(
        self,
        decides: Tensor,
        num_draft_tokens: Tensor,
        draft_ids: Tensor,
        token_ids: Tensor,
        lengths: Tensor,
        endings: Tensor | None,
    ) -> Deferred: ...


@dataclass(frozen=True)
class Core:
    """One implementation of the sampling core; what it needs beside its arguments, it owns."""

    name: str
    """triton or reference; recorded with every result."""
    verify: Verify
    draw: Draw
    coupled_draw: CoupledDraw
    defer: Defer
    logprobs: Logprobs
    workspace: Workspace | None = None
    """The scratch memory that its functions share; None where they need none."""


def reference_core() -> Core:
    """The executable specification, on any device."""
    from kernels.reference.coupled import coupled_draw
    from kernels.reference.defer import defer
    from kernels.reference.draw import draw
    from kernels.reference.logprobs import logprobs
    from kernels.reference.verify import verify

    return Core("reference", verify, draw, coupled_draw, defer, logprobs)


def triton_core() -> Core:
    """The kernels, with a workspace that all calls share: they must follow one another on one stream of work."""
    from kernels.coupled import coupled_draw
    from kernels.defer import defer
    from kernels.draw import draw
    from kernels.logprobs import logprobs
    from kernels.verify import verify
    from kernels.workspace import Workspace

    workspace = Workspace()
    return Core(
        "triton",
        partial(verify, workspace=workspace),
        partial(draw, workspace=workspace),
        partial(coupled_draw, workspace=workspace),
        defer,
        partial(logprobs, workspace=workspace),
        workspace,
    )


def core_for(device: torch.device) -> Core:
    """The core of a device: Triton on CUDA, the reference elsewhere."""
    return triton_core() if device.type == "cuda" else reference_core()
