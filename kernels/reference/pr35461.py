"""The negative control: probabilistic verification as first merged in vLLM's pull request 35461. Biased, on purpose.

The acceptance uniform and the residual's noise come from the same (seed, position) stream as the draft's Gumbel noise,
so a draft token that was likely to be drawn meets numbers that are no longer independent of it. Certification must
reject it. Drafts have to be drawn with `coupled_draw`.
"""

from __future__ import annotations

from torch import Tensor

from kernels.contract import Streams
from kernels.streams import Purpose, gumbel, uniform


def shared_uniforms(streams: Streams, positions: Tensor) -> Tensor:
    """The acceptance uniform of each position: the number that is behind the noise of token 0.

    Args:
        streams: fields [R].
        positions: [R, K] int64, absolute.

    Returns:
        [R, K] float64.
    """
    return uniform(streams.seeds[:, None], Purpose.coupled, positions, 0)


def shared_choice(weights: Tensor, streams: Streams, positions: Tensor) -> Tensor:
    """The recovered or bonus token: argmax of log weights plus the noise that drafted the position.

    Args:
        weights: [R, V] float64.
        streams: fields [R].
        positions: [R] int64, absolute.

    Returns:
        [R] int64.
    """
    return (weights.log() + gumbel(streams.seeds, positions, weights.shape[1])).argmax(dim=1)
