"""Log-probabilities of output tokens, with the best alternatives.

Shapes: N rows, V the vocabulary, n alternatives.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..contract import Sampling, TokenMask
from .token_mask import without_forbidden
from .truncation import process


class TopLogprobs(NamedTuple):
    """N output tokens beside the n most probable tokens of their rows."""

    token_logprob: Tensor
    """[N] float32, nats; -inf for a token that the processing cuts."""
    top_token_ids: Tensor
    """[N, n] int64, most probable first, the lowest id first among equals."""
    top_logprobs: Tensor
    """[N, n] float32, nats; -inf once the surviving tokens run out."""
    rank: Tensor
    """[N] int64, 1 + the number of more probable tokens, so equals share the best rank."""


def check_processed(sampling: Sampling | None, mask: TokenMask | None) -> None:
    """Raises ValueError for a mask on the raw distribution."""
    if sampling is None and mask is not None:
        raise ValueError("a mask belongs to the processed distribution, found one without sampling; give sampling too")


def logprobs(
    logits: Tensor, token_ids: Tensor, num_top: int, sampling: Sampling | None = None, mask: TokenMask | None = None
) -> TopLogprobs:
    """Look the output tokens up in their rows.

    Args:
        logits: [N, V], any floating dtype.
        token_ids: [N] int64 in [0, V).
        num_top: n, number of alternatives, 0 or more; at most V of them exist.
        sampling: fields [N], for the processed distribution that tokens are drawn from; None for the raw one,
            a plain log-softmax of the logits.
        mask: `rows` [N], under which the tokens were drawn; None when the rows are free. The raw distribution is the
            model's own and has none.

    Returns:
        TopLogprobs. A row without a distribution (all -inf, NaN or +inf) is NaN throughout when raw, and has all mass
        on token 0 when processed.

    Raises:
        ValueError: num_top is negative, the mask does not fit the rows, or the raw distribution is asked for under one.
    """
    if num_top < 0:
        raise ValueError(f"num_top must be 0 or more, found {num_top}")
    check_processed(sampling, mask)
    if mask is not None:
        logits = without_forbidden(logits, mask)
    values = torch.log_softmax(logits.double(), dim=1) if sampling is None else process(logits, sampling)
    token_logprob = values.gather(1, token_ids[:, None])
    rank = 1 + (values > token_logprob).sum(dim=1)
    # Only a stable sort puts the lowest id first among equals.
    ordered, order = values.sort(dim=1, descending=True, stable=True)
    return TopLogprobs(token_logprob[:, 0].float(), order[:, :num_top], ordered[:, :num_top].float(), rank)
