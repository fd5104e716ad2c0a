"""The coupled method, lossless: draft and target draw with the same noise (Daliri et al., arXiv 2408.07978).

    X = argmax log q + g,  y = argmax log p + g,  g(v) standard Gumbel noise of (seed, position, token v) only;
    accept iff X = y; always emit y

The output is a function of the target and the noise: for a fixed seed it does not depend on the drafter at all. Drafts
are drawn by kernels.reference.coupled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .rule import Look, RecordedTerms, Rule
from .traits import DraftSampling, Guarantee, MethodTraits

if TYPE_CHECKING:
    from torch import Tensor

    from ..contract import Streams
    from ..reference.proposal import Proposal
    from .hooks import Hooks


@dataclass(frozen=True)
class Coupled(Rule):
    traits = MethodTraits(
        Guarantee.lossless,
        draft_samplings=(DraftSampling.coupled, DraftSampling.greedy),
        decided_by_noise=True,
        emits_from_target=True,
        is_strict_on_one_hot=True,
    )
    look = Look("#E69F00", "s", "--")
    mass = "coupled_mass"

    @classmethod
    def hooks(cls) -> Hooks | None:
        from .coupled_device import HOOKS

        return HOOKS

    def run(
        self, proposal: Proposal, streams: Streams, noise_of: Callable[[Tensor, Tensor, int], Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Draw the target's tokens one position after another, for as long as they equal the draft tokens."""
        import torch

        from ..reference.truncation import largest

        target = proposal.target
        num_accepted = torch.zeros_like(proposal.num_usable)
        token_ids = torch.zeros_like(proposal.num_usable)
        going = torch.arange(len(num_accepted), device=num_accepted.device)
        for position in range(proposal.token_ids.shape[1] + 1):
            noise = noise_of(streams.seeds[going], streams.positions[going] + position, target.logits.shape[1])
            token_ids[going] = largest(target.logprobs(proposal.rows[going, position]).add_(noise))
            going = going[proposal.num_usable[going] > position]
            if len(going) == 0:
                break
            going = going[token_ids[going] == proposal.token_ids[going, position]]
            num_accepted[going] += 1
        return num_accepted, token_ids

    def recorded_odds(self, terms: RecordedTerms) -> tuple[Any, Any] | None:
        return terms.coupled_prob, 1.0
