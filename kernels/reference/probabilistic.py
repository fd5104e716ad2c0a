"""Probabilistic verification, lossless (Leviathan et al., arXiv 2211.17192; Chen et al., arXiv 2302.01318).

    accept X_i iff u_i * q_i(X_i) < p_i(X_i); stop at the first failure and emit from [p_i - q_i]+

Two other rules are this one with a changed argument:
strict (lossless) takes every proposal as one-hot: accept with probability p_i(X_i), else emit from p_i without X_i,
which has the law of drawing y_i ~ p_i and keeping the draft for as long as the two agree;
lenient (lossy, arXiv 2211.17192 appendix A.5) accepts iff u_i * l * q_i(X_i) < p_i(X_i).
"""

from __future__ import annotations

from .odds import Odds
from .proposal import Proposal


def probabilistic_odds(proposal: Proposal, leniency: float = 1.0) -> Odds:
    """[R, K] odds p_i(X_i) : l * q_i(X_i)."""
    return Odds(proposal.target_logprobs.exp(), proposal.draft_logprobs.exp() * leniency)
