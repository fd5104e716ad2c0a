"""Acceptance thresholds of SGLang, lossy below 1: `--speculative-accept-threshold-single` and `-acc` on chains.

    accept X_i iff p_i(X_i) >= single  or  u_i * acc < p_i(X_i); stop at the first failure and emit from p_i without X_i

The rule looks at the target alone, whatever the drafts were drawn from. With both thresholds at 1 it is strict. Source:
`TreeSpeculativeSamplingTargetOnly` in sgl-kernel/csrc/speculative, which sums p over siblings before it compares with
acc; a chain has none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .rule import FirstDrafts, FirstToken, Look, Rule
from .traits import Guarantee, MethodTraits

if TYPE_CHECKING:
    from torch import Tensor

    from ..reference.odds import Odds
    from ..reference.proposal import Proposal
    from .hooks import Hooks


@dataclass(frozen=True)
class Threshold(Rule):
    single: float = 1.0
    """Target probability from which a draft token passes for certain, in (0, 1]; 1 leaves it to the other test."""
    acc: float = 1.0
    """Divisor of the target probability with which it passes else, in (0, 1]; 1 is strict."""
    probe_words = "0.6 and 0.7"
    traits = MethodTraits(Guarantee.lossy)
    look = Look("#7F3C8D", (7, 1, 0), (0, (4, 1)))

    def __post_init__(self) -> None:
        for name, value in self.parameters.items():
            if not 0 < value <= 1:
                raise ValueError(f"{name} must lie in (0, 1], found {value}")

    @classmethod
    def probe(cls, num_draft_tokens: int) -> dict[str, Any]:
        return {"single": 0.6, "acc": 0.7}

    @classmethod
    def hooks(cls) -> Hooks | None:
        from .threshold_device import HOOKS

        return HOOKS

    def odds(self, proposal: Proposal) -> Odds:
        import torch

        from ..reference.odds import Odds

        target_probs = proposal.target_logprobs.exp()
        divisors = torch.where(target_probs >= self.single, target_probs, self.acc)
        return Odds(target_probs, divisors)

    def excess(self, proposal: Proposal, uniforms: Tensor) -> Tensor:
        """Of the easier of its two tests: a token passes by either, and fails where both fail."""
        import torch

        target_probs = proposal.target_logprobs.exp()
        below = (self.single - target_probs) / (self.single + target_probs)
        scaled = uniforms * self.acc
        return torch.minimum(below, (scaled - target_probs) / (scaled + target_probs))

    def first_token(self, proposal: Proposal, drafts: FirstDrafts) -> FirstToken | Tensor | None:
        import torch

        _, target, drawn, _ = drafts
        passes = torch.where(target >= self.single, 1.0, (target / self.acc).clamp(max=1.0))
        # of each draft token x that is rejected: p without x
        rejected = drawn * (1 - passes)
        shares = torch.where(target < 1, rejected / (1 - target).clamp(min=torch.finfo(torch.float64).tiny), 0.0)
        after = target * (shares.sum(dim=1, keepdim=True) - shares)
        mass = rejected.sum(dim=1, keepdim=True)
        return FirstToken(drawn * passes, torch.zeros_like(mass), torch.where(mass > 0, after / mass, target))
