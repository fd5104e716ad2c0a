"""The negative control: probabilistic verification as first merged in vLLM's pull request 35461. Biased, on purpose.

Draft noise, acceptance uniform and the noise of the recovered token all come from the one stream of (seed, position):
here the coupled stream. As there, the recovered token meets the very noise that chose the rejected draft token, and
the uniform is another number of the same stream, the same in every round. Given that the draft token won under that
noise, the noise of the others is no longer free: tokens that the draft favours come out too rarely after a rejection.
Certification must reject it. Drafts have to be drawn with `coupled_draw`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .probabilistic import Probabilistic
from .rule import Look, Rule
from .traits import DraftSampling, Guarantee, MethodTraits

if TYPE_CHECKING:
    from torch import Tensor

    from ..contract import Streams
    from .hooks import Hooks

ACCEPT_DRAW = 2**31
"""Draw of the acceptance uniform, beyond those of any vocabulary's noise."""


@dataclass(frozen=True)
class PR35461(Probabilistic):
    traits = MethodTraits(
        Guarantee.biased, draft_samplings=(DraftSampling.coupled,), reads_draft=True, decided_by_noise=True
    )
    look = Look("#000000", "h", (0, (4, 2, 1, 2)))
    recorded_odds = Rule.recorded_odds
    """None: its draft and acceptance share their noise."""

    @classmethod
    def hooks(cls) -> Hooks | None:
        from .pr35461_device import HOOKS

        return HOOKS

    def uniforms(self, streams: Streams, positions: Tensor) -> Tensor:
        from ..random.streams import Purpose, uniform

        return uniform(streams.seeds[:, None], Purpose.coupled, positions, 0, ACCEPT_DRAW)

    def choose(self, weights: Tensor, streams: Streams, position: Tensor, recovers: Tensor) -> Tensor:
        """The argmax of log weights plus the noise that drafted the position."""
        from ..random.streams import gumbel

        return (weights.log() + gumbel(streams.seeds, position, weights.shape[1])).argmax(dim=1)

    def knows_first_token(self, num_draft_tokens: int, draws_unrounded: bool) -> bool:
        """Not: its draws depend on one another."""
        return False
