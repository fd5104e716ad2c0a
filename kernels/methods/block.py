"""Block verification, lossless, the longest expected accepted prefix of all chain rules (Sun et al., arXiv 2403.10444).

    P_0 = 1,  P_i = min(P_{i-1} * p_i(X_i) / q_i(X_i), 1)
    Z_i = sum_x [P_i * p_{i+1}(x) - q_{i+1}(x)]+
    h_i = Z_i / (Z_i + 1 - P_i) for i < K (0/0 := 1),  h_K = P_K
    A = max{ i : u_i < h_i }, 0 if none; A < K: emit from [P_A * p_{A+1} - q_{A+1}]+

K is the request's own number of draft tokens. Every i is looked at; a failure before A does not matter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .probabilistic import kept_and_residual
from .rule import FirstDrafts, FirstToken, Look, RecordedTerms, Rule, relative_excess
from .traits import OWN_NOISE, Guarantee, MethodTraits

if TYPE_CHECKING:
    from torch import Tensor

    from ..reference.odds import Odds
    from ..reference.proposal import Proposal
    from .hooks import Hooks


@dataclass(frozen=True)
class Block(Rule):
    traits = MethodTraits(
        Guarantee.lossless,
        draft_samplings=OWN_NOISE,
        reads_draft=True,
        stops_at_first_failure=False,
        is_strict_on_one_hot=True,
        expected_is_recorded=True,
    )
    look = Look("#009E73", "D", (0, (6, 1.5)))
    mass = "block_overlap"

    @classmethod
    def hooks(cls) -> Hooks | None:
        from .block_device import HOOKS

        return HOOKS

    def odds(self, proposal: Proposal) -> Odds:
        return block_odds(proposal)

    def recorded_odds(self, terms: RecordedTerms) -> tuple[Any, Any] | None:
        return terms.block_threshold, 1.0

    def scale(self, proposal: Proposal, num_accepted: Tensor) -> Tensor:
        return log_prefix_ratios(proposal).gather(1, num_accepted[:, None])[:, 0].exp()

    def excess(self, proposal: Proposal, uniforms: Tensor) -> Tensor:
        """Over 1 + P (1 + 4 i): Z enters with weight 1 - u, P with weight u and through Z, P is a product of i ratios,
        Z a sum of differences of P p and q. At the last token over 2 i P."""
        import torch

        ratios = log_prefix_ratios(proposal)[:, 1:].exp()
        index = torch.arange(1, ratios.shape[1] + 1, device=ratios.device)
        is_last = index == proposal.num_usable[:, None]
        scale = torch.where(is_last, 2 * index * ratios, 1 + ratios * (1 + 4 * index))
        return relative_excess(self.odds(proposal), uniforms, scale)

    def knows_first_token(self, num_draft_tokens: int, draws_unrounded: bool) -> bool:
        """With further draft tokens that were not drawn from what is compared with the first one depends on them."""
        return num_draft_tokens <= 1 or not draws_unrounded

    def first_token(self, proposal: Proposal, drafts: FirstDrafts) -> FirstToken | Tensor | None:
        """Of one draft token, with which it is probabilistic verification."""
        return kept_and_residual(drafts, leniency=1.0)


def log_prefix_ratios(proposal: Proposal) -> Tensor:
    """[R, K + 1] float64, log P_0 .. log P_K; never above 0, and constant beyond the usable draft tokens."""
    import torch

    steps = (proposal.target_logprobs - proposal.draft_logprobs).masked_fill(~proposal.usable, 0.0)
    columns = [steps.new_zeros(len(steps))]
    for step in steps.unbind(dim=1):
        columns.append((columns[-1] + step).clamp(max=0.0))
    return torch.stack(columns, dim=1)


def residual_masses(proposal: Proposal, ratios: Tensor) -> Tensor:
    """Z_i for 1 <= i < K.

    Args:
        proposal: the round.
        ratios: [R, K] float64, P_1 .. P_K.

    Returns:
        [R, K] float64; 0 where X_{i+1} is missing.
    """
    import torch

    from ..reference.residual import residual
    from ..reference.truncation import rows_per_chunk

    masses = torch.zeros_like(ratios)
    if ratios.shape[1] < 2:
        return masses
    next_unmatched = -torch.expm1(proposal.target_logprobs[:, 1:])
    masses[:, :-1] = torch.where(proposal.usable[:, 1:], ratios[:, :-1] * next_unmatched, 0.0)
    compared = proposal.usable[:, 1:] & ~proposal.one_hot[:, None]
    if "compared_residuals" in proposal.kept:
        found: Tensor = proposal.kept["compared_residuals"][:, 1:]
        masses[:, :-1] = torch.where(compared, found, masses[:, :-1])
        return masses
    places = compared.nonzero()
    for part in places.split(rows_per_chunk(proposal.target.logits)) if len(places) else ():
        requests, index = part.unbind(dim=1)
        masses[requests, index] = residual(proposal, requests, index + 1, ratios[requests, index]).sum(dim=1)
    return masses


def block_odds(proposal: Proposal) -> Odds:
    """[R, K] odds of h_i, worked out once for a proposal."""
    if "block_odds" not in proposal.kept:
        proposal.kept["block_odds"] = _block_odds(proposal, log_prefix_ratios(proposal)[:, 1:])
    odds: Odds = proposal.kept["block_odds"]
    return odds


def _block_odds(proposal: Proposal, log_ratios: Tensor) -> Odds:
    """`block_odds` from the logarithms of P_1 .. P_K, [R, K] float64."""
    import torch

    from ..reference.odds import Odds

    ratios = log_ratios.exp()
    numerator = residual_masses(proposal, ratios)
    denominator = numerator - torch.expm1(log_ratios)
    is_last = torch.arange(1, ratios.shape[1] + 1, device=ratios.device) == proposal.num_usable[:, None]
    settled = is_last | (denominator == 0)
    return Odds(torch.where(settled, ratios, numerator), torch.where(settled, 1.0, denominator))
