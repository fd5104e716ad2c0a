"""Draws with the noise that draft and target share (Daliri et al., arXiv 2408.07978): X = argmax log q + g.

g(v) is standard Gumbel noise of (seed, position, token v) only. Verification: kernels.methods.coupled.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from ..checks import check_num_tokens
from ..contract import Drawn, Sampling, Streams, TokenMask
from ..random.streams import gumbel
from .draw import drawn
from .token_mask import without_forbidden
from .truncation import largest, processed

Noise = Callable[[Tensor, Tensor, int], Tensor]
"""`kernels.random.streams.gumbel`, or what keeps its rows."""


def coupled_draw(
    logits: Tensor,
    sampling: Sampling,
    streams: Streams,
    vocab_size: int,
    draft_to_target: Tensor | None = None,
    mask: TokenMask | None = None,
    noise_of: Noise = gumbel,
) -> Drawn:
    """Draw one token per row with the noise of its position.

    Args:
        logits: [N, V_draft], any floating dtype.
        sampling: fields [N].
        streams: fields [N]; `positions` is the position of the token being drawn; `rounds` is not used.
        vocab_size: V of the target, whose token ids the noise belongs to.
        draft_to_target: [V_draft] int64, or None when the ids are the target's.
        mask: `rows` [N], of the target's token ids; None when the rows are free.
        noise_of: gives the noise.

    Returns:
        Drawn, fields [N].

    Raises:
        ValueError: the target does not have all drafted ids.
    """
    if draft_to_target is None:
        check_num_tokens(logits.shape[1], vocab_size, "logits")
    if mask is not None:
        logits = without_forbidden(logits, mask, draft_to_target)
    rows = processed(logits, sampling)
    if bool((rows.certain >= 0).all()):
        return drawn(rows, rows.certain, draft_to_target)
    noise = noise_of(streams.seeds, streams.positions, vocab_size)
    if draft_to_target is not None:
        noise = noise[:, draft_to_target]
    return drawn(rows, largest(rows.logprobs().add_(noise[:, : logits.shape[1]])), draft_to_target)
