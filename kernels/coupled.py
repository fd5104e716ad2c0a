"""Draw one token per row with the coupled method's noise. Twin of kernels.reference.coupled.

The noise belongs to (seed, position, token of the target's vocabulary), so that a draft and the target, drawing at the
same position, mostly draw the same token; kernels.gumbel_argmax finds the winner. kernels.verify verifies them.
"""

from __future__ import annotations

from torch import Tensor

from kernels.contract import Drawn, RowStats, Sampling, Streams, TokenMask, VerificationMethod
from kernels.draw import draw_rows
from kernels.streams import Purpose
from kernels.workspace import Workspace


def coupled_draw(
    logits: Tensor,
    sampling: Sampling,
    streams: Streams,
    vocab_size: int,
    draft_to_target: Tensor | None = None,
    row_stats: RowStats | None = None,
    workspace: Workspace | None = None,
    mask: TokenMask | None = None,
) -> Drawn:
    """Draw one token per row with the noise of its position.

    Arguments and result are those of kernels.reference.coupled, but that logits are bfloat16, float16 or float32.

    Args:
        row_stats: fields [N], may be strided; takes the statistics of the rows.
        workspace: scratch memory; None takes fresh memory for this call.

    Raises:
        ValueError: a tensor's shape, type or layout is not as there, or the target does not have all drafted ids.
    """
    if draft_to_target is None and logits.shape[-1] > vocab_size:
        raise ValueError(f"logits must have at most the target's {vocab_size} tokens, found {logits.shape[-1]}")
    return draw_rows(
        logits,
        sampling,
        streams,
        VerificationMethod.coupled,
        int(Purpose.coupled),
        draft_to_target,
        row_stats,
        workspace,
        mask,
    )
