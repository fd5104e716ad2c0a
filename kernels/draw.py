"""Draw one token per row: drafts, and tokens of the target without a draft.

`draw` takes one uniform number per row: no random number, logarithm or float32 copy per vocabulary entry. Its twin is
kernels.reference.draw. `coupled_draw` takes the coupled method's noise, which belongs to (seed, position, token of the
target's vocabulary), so that a draft and the target, drawing at the same position, mostly draw the same token;
kernels.rows.gumbel_argmax finds the winner. Its twin is kernels.reference.coupled.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .chain.launch_args import Round, no_draft, stream_state
from .chain.passes import launch
from .checks import check_logits, check_num_tokens, check_row_stats, check_token_map, checked_requests
from .contract import Drawn, RowStats, Sampling, Streams, TokenMask, VerificationMethod
from .launch.kernel_args import DraftTokens, Output, TargetRows
from .launch.workspace import Shape, Workspace
from .methods.hooks import COUPLED, hooks_of
from .random.streams import Purpose
from .rows.token_mask import mask_rows
from .rows.unaligned import in_words_or_lead, read_in_words


def draw(
    logits: Tensor,
    sampling: Sampling,
    streams: Streams,
    purpose: Purpose,
    draft_to_target: Tensor | None = None,
    row_stats: RowStats | None = None,
    workspace: Workspace | None = None,
    mask: TokenMask | None = None,
) -> Drawn:
    """Draw one token per row, with one uniform number per row.

    Arguments and result are those of kernels.reference.draw, but that logits are bfloat16, float16 or float32.

    Args:
        workspace: scratch memory; None takes fresh memory for this call.

    Raises:
        ValueError: a tensor's shape, type or layout is not as there.
    """
    return draw_rows(
        logits, sampling, streams, VerificationMethod.strict, int(purpose), draft_to_target, row_stats, workspace, mask
    )


def draw_rows(
    logits: Tensor,
    sampling: Sampling,
    streams: Streams,
    method: VerificationMethod,
    purpose: int,
    draft_to_target: Tensor | None,
    row_stats: RowStats | None,
    workspace: Workspace | None,
    mask: TokenMask | None,
) -> Drawn:
    """A round without drafts: what `draw` and `coupled_draw` share, with the arguments of `draw`.

    Args:
        method: `coupled` draws with the noise of the position, every other method with one uniform number.
        purpose: the stream of that number.
    """
    check_logits(logits, "logits", dimensions=2)
    num_rows, vocab_size = logits.shape
    check_token_map(draft_to_target, "draft_to_target", vocab_size)
    check_row_stats(row_stats, "row_stats", (num_rows,))
    sampling, streams = checked_requests(num_rows, sampling, streams)
    device, workspace = logits.device, workspace or Workspace()
    hooks = hooks_of(method)
    is_coupled = hooks.noise == COUPLED
    in_words, lead = in_words_or_lead(
        read_in_words(logits, logits.stride(0)), not (is_coupled or sampling.truncates or mask is not None)
    )
    shape = Shape(
        num_rows, width=0, vocab_size=vocab_size, num_positions=1, draws_gumbel=is_coupled, has_lead=lead is not None
    )
    drawn = Drawn(
        torch.empty(num_rows, dtype=torch.int64, device=device),
        torch.empty(num_rows, dtype=torch.float32, device=device),
        torch.empty(num_rows, dtype=torch.bool, device=device),
    )
    counts = workspace.buffer("no_drafts", num_rows, torch.int64, device, zeroed=True)
    unread = workspace.buffer("unread", num_rows, torch.int64, device)
    round_ = Round(
        hooks=hooks,
        traits=method.traits,
        target=TargetRows(
            logits,
            logits.stride(0),
            vocab_size,
            None,
            in_words,
            lead,
            *mask_rows(mask, "mask", (num_rows,), vocab_size, draft_to_target),
        ),
        draft=no_draft(),
        tokens=DraftTokens(counts, 0, counts, num_rows, 0),
        sampling=sampling,
        streams=stream_state(streams),
        rule=workspace.rule(method.rule(), 0, device),
        rows=workspace.row_buffers(shape, device, row_stats),
        state=workspace.round_state(shape, device),
        output=Output(drawn.token_ids, unread, drawn.invalid, drawn.logprobs, draft_to_target),
        shape=shape,
        workspace=workspace,
        purpose=purpose,
    )
    launch(round_)
    return drawn


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
    if draft_to_target is None:
        check_num_tokens(logits.shape[-1], vocab_size, "logits")
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
