"""Typical acceptance, lossy (Cai et al., Medusa, arXiv 2401.10774).

    accept X_i iff p_i(X_i) > min(epsilon, delta * exp(-H(p_i))), H the entropy in nats

Stop at the first failure; the next token comes from the target. At temperature 0, where p_i is certain, only the argmax
passes, whatever epsilon.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .rule import FirstDrafts, FirstToken, Look, RecordedTerms, Rule
from .traits import Guarantee, MethodTraits

if TYPE_CHECKING:
    from torch import Tensor

    from ..reference.odds import Odds
    from ..reference.proposal import Proposal
    from .hooks import Hooks


@dataclass(frozen=True)
class Typical(Rule):
    epsilon: float = 0.09
    """Upper bound of the acceptance threshold on the target probability."""
    delta: float = 0.3
    """Factor of exp(-entropy) in the threshold; entropy in nats."""
    traits = MethodTraits(Guarantee.lossy, emits_from_target=True)
    look = Look("#CC79A7", "v", ":")

    def __post_init__(self) -> None:
        if not 0 < self.epsilon <= 1:
            raise ValueError(f"epsilon must lie in (0, 1], found {self.epsilon}")
        if not 0 < self.delta < math.inf:
            raise ValueError(f"delta must be positive and finite, found {self.delta}")

    @classmethod
    def hooks(cls) -> Hooks | None:
        from .typical_device import HOOKS

        return HOOKS

    def thresholds(self, proposal: Proposal, rows: Tensor) -> Tensor:
        """float64 min(epsilon, delta * exp(-H)) of target rows, int64 of any shape."""
        import torch

        from ..reference.entropy import entropies

        return (self.delta * torch.exp(-entropies(proposal.target))[rows]).clamp(max=self.epsilon)

    def odds(self, proposal: Proposal) -> Odds:
        """1 : 1 or 0 : 1."""
        import torch

        from ..reference.odds import Odds

        target_probs = proposal.target_logprobs.exp()
        passes = (target_probs > self.thresholds(proposal, proposal.rows[:, :-1])) | (target_probs == 1)
        return Odds(passes.double(), torch.ones_like(target_probs))

    def excess(self, proposal: Proposal, uniforms: Tensor) -> Tensor:
        """How far the threshold lies above the target probability, over (p + threshold) * (1 + log V): the entropy is
        off by at most 1 + log V errors of a probability."""
        import torch

        target_probs = proposal.target_logprobs.exp()
        threshold = self.thresholds(proposal, proposal.rows[:, :-1])
        scale = (target_probs + threshold) * (1 + math.log(proposal.target.logits.shape[1]))
        # A certain row passes whatever the threshold; nothing is rounded there.
        return torch.where(target_probs == 1, -1.0, (threshold - target_probs) / scale)

    def recorded_odds(self, terms: RecordedTerms) -> tuple[Any, Any] | None:
        """1 : 1 or 0 : 1. Certainty passes whatever epsilon: at temperature 0 the argmax is accepted."""
        target_prob = terms.target_prob
        is_likely = (target_prob > self.epsilon) | (target_prob > self.delta * terms.target_certainty)
        return is_likely | (target_prob == 1), 1.0

    def first_token(self, proposal: Proposal, drafts: FirstDrafts) -> FirstToken | Tensor | None:
        import torch

        requests, target, drawn, _ = drafts
        threshold = self.thresholds(proposal, proposal.rows[requests, 0])
        passes = (target > threshold[:, None]) | (target == 1)
        return FirstToken(drawn * passes, torch.zeros_like(target[:, :1]), target)
