"""The negative control: probabilistic verification as first merged in vLLM's pull request 35461. Biased, on purpose.

Draft noise, acceptance uniform and the noise of the recovered token all come from the one stream of (seed, position):
here the coupled stream. As there, the recovered token meets the very noise that chose the rejected draft token, and
the uniform is another number of the same stream, the same in every round. Given that the draft token won under that
noise, the noise of the others is no longer free: tokens that the draft favours come out too rarely after a rejection.
Certification must reject it. Drafts have to be drawn with `coupled_draw`.
"""

from __future__ import annotations

from torch import Tensor

from ..contract import Streams
from ..streams import Purpose, gumbel, uniform

ACCEPT_DRAW = 2**31
"""Draw of the acceptance uniform, beyond those of any vocabulary's noise."""


def shared_uniforms(streams: Streams, positions: Tensor) -> Tensor:
    """The acceptance uniform of each position.

    Args:
        streams: fields [R].
        positions: [R, K] int64, absolute.

    Returns:
        [R, K] float64.
    """
    return uniform(streams.seeds[:, None], Purpose.coupled, positions, 0, ACCEPT_DRAW)


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
