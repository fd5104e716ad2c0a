"""Log-probabilities of emitted tokens on their way from the device to a record, as integers beside what a step decides.

Shapes: B slots, T tokens of a round at most, n best tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from harness.records.token_logprobs import TokenLogprobs
from kernels.contract import Sampling, TokenMask
from kernels.core import Core


class LogprobsSettings(NamedTuple):
    """What is asked for of every output token."""

    num_top: int
    """n."""
    is_processed: bool
    """Of the distribution that tokens are drawn from: after masks, temperature and truncation; else of the logits."""


def packed_logprobs(
    core: Core,
    # [B * T, V]
    logits: Tensor,
    # [B, T] int64, -1 where nothing was emitted
    token_ids: Tensor,
    settings: LogprobsSettings,
    sampling: Sampling,
    mask: TokenMask | None,
) -> Tensor:
    """Look the emitted tokens up in the rows that they were drawn from.

    Args:
        core: the sampling core.
        logits: of the target; row t of a slot is that of its token t, whichever way it came to be emitted.
        token_ids: what verification emitted.
        settings: what is asked for.
        sampling: fields [B].
        mask: of the rows.

    Returns:
        [B, T * (2 + 2n)] int64: of each token rank, n ids, and the bits of 1 + n float32; no meaning where nothing was
        emitted.
    """
    num_rows, width = token_ids.shape
    rows, row_mask = None, None
    if settings.is_processed:
        rows, row_mask = sampling.each(lambda field: field.repeat_interleave(width)), mask
    found = core.logprobs(logits, token_ids.clamp_min(0).flatten(), settings.num_top, rows, row_mask)
    floats = torch.cat([found.token_logprob.unsqueeze(1), found.top_logprobs], dim=1)
    columns = [found.rank.unsqueeze(1), found.top_token_ids, floats.view(torch.int32).long()]
    return torch.cat(columns, dim=1).view(num_rows, -1)


def unpacked_logprobs(packed: Sequence[int], num_tokens: int) -> TokenLogprobs:
    """The columns of a record from what was packed of a request's output tokens."""
    table = np.array(packed, dtype=np.int64).reshape(num_tokens, -1)
    num_top = table.shape[1] // 2 - 1
    floats = table[:, 1 + num_top :].astype(np.int32).view(np.float32).astype(np.float64)
    is_finite = np.isfinite(floats)
    token = tuple(float(row[0]) if finite[0] else None for row, finite in zip(floats, is_finite, strict=True))
    num_kept = is_finite[:, 1:].sum(axis=1)
    rows = range(num_tokens)
    return TokenLogprobs(
        token=token,
        rank=tuple(table[:, 0].tolist()),
        top_token_ids=tuple(tuple(table[row, 1 : 1 + num_kept[row]].tolist()) for row in rows),
        top=tuple(tuple(floats[row, 1 : 1 + num_kept[row]].tolist()) for row in rows),
    )
