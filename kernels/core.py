"""The sampling core of a device: the Triton kernels on a GPU, the reference anywhere else.

Both have the same functions, streams and contract. The kernels are imported only where they run, so that a machine
without triton has a core too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import torch

from .contract import Deferred, Drawn, VerificationResult
from .reference.logprobs import TopLogprobs

if TYPE_CHECKING:
    from .launch.workspace import Workspace


@dataclass(frozen=True)
class Core:
    """One implementation of the sampling core; what it needs beside its arguments, it owns.

    The file of each function's name in kernels.reference defines what it takes; that of kernels for `commit`, `defer`
    and `edit_logits`.
    """

    name: str
    """triton or reference; recorded with every result."""
    commit: Callable[..., torch.Tensor]
    verify: Callable[..., VerificationResult]
    draw: Callable[..., Drawn]
    coupled_draw: Callable[..., Drawn]
    defer: Callable[..., Deferred]
    logprobs: Callable[..., TopLogprobs]
    edit_logits: Callable[..., None]
    draw_children: Callable[..., torch.Tensor] | None = None
    """None in a core that has no trees of drafts."""
    workspace: Workspace | None = None
    """The scratch memory that its functions share; None where they need none."""


def reference_core() -> Core:
    """The executable specification, on any device; every function works out all that it needs."""
    from .reference.commit import commit
    from .reference.coupled import coupled_draw
    from .reference.defer import defer
    from .reference.draw import draw
    from .reference.draw_children import draw_children
    from .reference.edit_logits import edit_logits
    from .reference.logprobs import logprobs
    from .reference.verify import verify

    return Core("reference", commit, verify, draw, coupled_draw, defer, logprobs, edit_logits, draw_children)


def cpu_core() -> Core:
    """The same, but what one function has worked out, the next ones take: statistics of draft rows, Gumbel noise."""
    from .reference.kept_noise import KeptNoise

    core, noise = reference_core(), KeptNoise()
    verify = partial(core.verify, reads_stats=True, noise_of=noise)
    return replace(core, verify=verify, coupled_draw=partial(core.coupled_draw, noise_of=noise))


def triton_core(workspace: Workspace | None = None) -> Core:
    """The kernels, with a workspace that all calls share: they must follow one another on one stream of work.

    Args:
        workspace: that one; None makes one.
    """
    from .commit import commit
    from .defer import defer
    from .draw import coupled_draw, draw
    from .edit_logits import edit_logits
    from .logprobs import logprobs
    from .tree.draw_children import draw_children
    from .verify import verify

    if workspace is None:
        from .launch.workspace import Workspace

        workspace = Workspace()
    return Core(
        "triton",
        commit,
        partial(verify, workspace=workspace),
        partial(draw, workspace=workspace),
        partial(coupled_draw, workspace=workspace),
        defer,
        partial(logprobs, workspace=workspace),
        edit_logits,
        partial(draw_children, workspace=workspace),
        workspace=workspace,
    )


def core_for(device: torch.device) -> Core:
    """The core of a device: Triton on CUDA, the reference elsewhere."""
    return triton_core() if device.type == "cuda" else cpu_core()
