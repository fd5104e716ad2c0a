"""FLy, lossy: entropy-gated deferral (Li et al., arXiv 2511.22972), as vLLM 0.33.0 has it (v1/spec_decode/fly.py).

Natively, draft tokens pass as under probabilistic verification: u_i q_i(X_i) < p_i(X_i), and at temperature 0 where X_i
is the target's argmax. With a window of W tokens and a threshold on the entropy over the k most likely ones,

    H_i = - sum of p_i(x) log p_i(x) over the k most likely tokens x, in nats, not normalised again
    X_i that fails natively passes all the same (is deferred) iff
        H_i >= threshold,  p_i(X_i) > 0,  and X_{i+1}..X_{i+W} all pass natively

The rule then stops at the first token that does not pass, and what follows comes from the residual, as under
probabilistic verification. All of it is decided inside a round: a window that reaches beyond the last draft token, or
beyond one that cannot be verified, is not full, and its token is rejected. No state goes from a round to the next.

p_i is the processed distribution. At temperature 0 it is certain, so that H_i and p_i(X_i) > 0 are those of
temperature 1 without a cut. (vLLM's model runner V2 takes those for every temperature, which its documentation does not
say.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from .probabilistic import Probabilistic
from .rule import FirstDrafts, FirstToken, Look, Rule
from .traits import OWN_NOISE, Guarantee, MethodTraits

if TYPE_CHECKING:
    from torch import Tensor

    from ..reference.proposal import Proposal
    from ..reference.truncation import Processed
    from .hooks import Hooks


@dataclass(frozen=True)
class Fly(Probabilistic):
    window_size: int | None = None
    """Draft tokens behind a rejected one that must pass by themselves, 1 to K - 1; null takes 6, or K - 1 where that
    is less, which defers a draft's first token alone."""
    entropy_threshold: float = 0.3
    """Least entropy of the target at which a rejected draft token may be deferred, in nats."""
    entropy_top_k: int = 3
    """Most likely tokens that the entropy is summed over."""
    probe_words = "a window of 1"
    traits = MethodTraits(Guarantee.lossy, draft_samplings=OWN_NOISE, reads_draft=True, defers=True)
    look = Look("#B8860B", (8, 1, 0), (0, (2, 2)))
    recorded_odds = Rule.recorded_odds
    """None: records do not hold the entropy of the most likely tokens."""

    def __post_init__(self) -> None:
        if self.window < 1:
            raise ValueError(f"window_size must be 1 or more, found {self.window_size}")
        if not 0 <= self.entropy_threshold < math.inf:
            raise ValueError(f"entropy_threshold must be 0 or more and finite, found {self.entropy_threshold}")
        if self.entropy_top_k < 1:
            raise ValueError(f"entropy_top_k must be 1 or more, found {self.entropy_top_k}")

    @classmethod
    def probe(cls, num_draft_tokens: int) -> dict[str, Any]:
        return {"window_size": 1}

    @classmethod
    def hooks(cls) -> Hooks | None:
        from .fly_device import HOOKS

        return HOOKS

    @property
    def window(self) -> int:
        """W, as vLLM has it by default where none is given."""
        return 6 if self.window_size is None else self.window_size

    def at(self, num_draft_tokens: int) -> Self:
        if self.window_size is not None:
            return self
        return replace(self, window_size=max(1, min(self.window, num_draft_tokens - 1)))

    def refusal(self, num_draft_tokens: int, levels: Sequence[int] | None) -> str | None:
        window = self.at(num_draft_tokens).window
        if window < num_draft_tokens:
            return None
        found = "null, which is at least 1," if self.window_size is None else window
        return (
            "a draft token is deferred for the sake of those behind it, so that verification.window_size must be less "
            f"than K, found {found} with K = {num_draft_tokens}; lower it, or raise drafting.num_speculative_tokens "
            "above it, to 2 or more"
        )

    def numbers(self) -> tuple[float, ...]:
        return float(self.window), self.entropy_threshold, float(self.entropy_top_k)

    def entropies(self, proposal: Proposal) -> Tensor:
        """[R, K] float64, H_i."""
        return top_entropies(proposal.target, self.entropy_top_k)[proposal.rows[:, :-1]]

    def is_open(self, proposal: Proposal) -> Tensor:
        """[R, K] bool, whether the entropy and p_i(X_i) would let a draft token be deferred."""
        return is_possible(proposal) & (self.entropies(proposal) >= self.entropy_threshold)

    def revised(self, passes: Tensor, proposal: Proposal) -> Tensor:
        full = has_full_window(passes, proposal, self.window)
        return passes | (full & self.is_open(proposal)) if bool((full & ~passes).any()) else passes

    def with_revision(self, to_pass: Tensor, to_fail: Tensor, proposal: Proposal) -> tuple[Tensor, Tensor]:
        """A token may pass in two ways, so that the easier one counts, and is rejected where both fail; 1 + H counts
        for the entropy H."""
        import torch

        entropies = self.entropies(proposal)
        below = (self.entropy_threshold - entropies) / (1 + entropies)
        to_open = below.clamp(min=0.0).masked_fill(~is_possible(proposal), torch.inf)
        to_close = (-below).clamp(min=0.0).masked_fill(~is_possible(proposal), 0.0)
        # behind the last usable token nothing passes, and that takes no rounding
        window, width = self.window, to_pass.shape[1]
        behind_passes = torch.nn.functional.pad(
            to_pass.masked_fill(~proposal.usable, torch.inf), (0, window), value=math.inf
        )
        behind_fails = torch.nn.functional.pad(to_fail.masked_fill(~proposal.usable, 0.0), (0, window))
        fill = behind_passes.unfold(1, window + 1, 1)[:, :width, 1:].amax(dim=2)
        leave = behind_fails.unfold(1, window + 1, 1)[:, :width, 1:].amin(dim=2)
        passes = torch.minimum(to_pass, torch.maximum(to_open, fill))
        return passes, torch.maximum(to_fail, torch.minimum(to_close, leave))

    def knows_first_token(self, num_draft_tokens: int, draws_unrounded: bool) -> bool:
        return not draws_unrounded

    def first_token(self, proposal: Proposal, drafts: FirstDrafts) -> FirstToken | Tensor | None:
        """[R] float64 in [0, 1], how likely it is, given the drafts, that the first one fails natively and is deferred:
        the mean over drafts is the distance of the first token from the target."""
        natively = self.odds(proposal).probability().masked_fill(~proposal.usable, 0.0)
        window = self.window
        if window >= natively.shape[1]:
            return natively.new_zeros(len(natively))
        opens = (self.is_open(proposal) & proposal.usable)[:, 0]
        return (1 - natively[:, 0]) * opens * natively[:, 1 : window + 1].prod(dim=1)


def top_entropies(rows: Processed, top_k: int) -> Tensor:
    """[N] float64, H of each row, in nats; without a meaning for a row without a distribution."""
    import torch

    from ..reference.truncation import rows_per_chunk

    found = torch.zeros_like(rows.log_normalizer)
    for part in torch.arange(len(found), device=found.device).split(rows_per_chunk(rows.logits)):
        logprobs = rows.logprobs(part)
        certain = (rows.certain[part] >= 0).nonzero()[:, 0]
        if len(certain):
            logprobs[certain] = rows.logits[part[certain]].double().log_softmax(dim=1)
        largest = logprobs.topk(min(top_k, logprobs.shape[1]), dim=1).values
        # 0 log 0 := 0
        found[part] = -(largest.exp() * largest.clamp(min=torch.finfo(torch.float64).min)).sum(dim=1)
    return found


def is_possible(proposal: Proposal) -> Tensor:
    """[R, K] bool, p_i(X_i) > 0."""
    import torch

    rows = proposal.rows[:, :-1]
    logits = proposal.target.logits[rows, proposal.token_ids]
    certain = proposal.target.certain[rows] >= 0
    return torch.where(certain, logits > -torch.inf, proposal.target_logprobs > -torch.inf)


def has_full_window(passes: Tensor, proposal: Proposal, window_size: int) -> Tensor:
    """[R, K] bool, whether each draft token has W usable ones behind it that pass."""
    import torch

    width = passes.shape[1]
    if window_size >= width:
        return torch.zeros_like(passes)
    natively = passes & proposal.usable
    full = natively[:, 1:].unfold(1, window_size, 1).all(dim=2)
    return torch.nn.functional.pad(full, (0, width - full.shape[1]))
