"""What is true of a verification method, whatever its parameters; this module knows neither torch nor triton."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .table import VerificationMethod


class DraftSampling(Enum):
    """How the proposal is drawn. The proposal of `greedy` is one-hot."""

    greedy = "greedy"
    sampled = "sampled"
    coupled = "coupled"


class Guarantee(Enum):
    """What a verification method promises about the law of the output tokens."""

    lossless = "lossless"
    lossy = "lossy"
    synthetic = "synthetic"
    biased = "biased"


class SiblingDraws(Enum):
    """How the children of a node are drawn from its row; those of one-hot proposals are certain."""

    independent = "independent"
    distinct = "distinct"  # without replacement


SMALLEST_REST = 2.0**-80
"""Of a draft row's probability, that its rejected or drawn tokens must leave for a further distinct child: below it the
row has no further token. A float32 weight holds what is above it, divided among up to 2^40 tokens."""

OWN_NOISE = (DraftSampling.sampled, DraftSampling.greedy)
ANY_DRAFTS = (*OWN_NOISE, DraftSampling.coupled)


@dataclass(frozen=True)
class MethodTraits:
    """What is true of a verification method."""

    guarantee: Guarantee
    draft_samplings: tuple[DraftSampling, ...] = ANY_DRAFTS
    """Drafts that it may be given; `drafting.sampling=auto` is the first."""
    reads_draft: bool = False
    """It compares with the draft distribution, which must be the one that the drafts were drawn from."""
    decided_by_noise: bool = False
    """It decides by the noise that coupled drafts were drawn with."""
    stops_at_first_failure: bool = True
    """It accepts the draft tokens before the first that fails; else those up to the last that passes."""
    emits_from_target: bool = False
    """The token after the accepted ones has the target's distribution, rejected draft token or not."""
    greedy_only: bool = False
    """It is defined at temperature 0 alone."""
    ignores_tokens: bool = False
    """It accepts draft tokens whatever they are."""
    is_strict_on_one_hot: bool = False
    """A one-hot proposal X is accepted with probability p(X), and replaced by another token else."""
    defers: bool = False
    """It may accept a draft token that fails for the sake of those that follow it, also at temperature 0."""
    expected_is_recorded: bool = False
    """Records hold how many draft tokens it is expected to accept of each draft."""
    siblings: tuple[SiblingDraws, ...] = ()
    """It verifies trees of drafts whose children of a node are drawn in one of these ways; empty: chains only."""
    on_chains: VerificationMethod | None = None
    """Of a method for trees alone: the method that it is where each node has one child, token for token."""

    @property
    def compares_draws(self) -> bool:
        """It accepts a draft token iff the target draws the same with the noise of the draft."""
        return self.decided_by_noise and not self.reads_draft

    @property
    def keeps_argmax(self) -> bool:
        """At temperature 0 it accepts and emits the target's argmax alone."""
        return not self.ignores_tokens and not self.defers

    @property
    def shares_no_noise(self) -> bool:
        """No draw of a draft decides about a token that is emitted, so that coupled drafts are as good as sampled."""
        return self.stops_at_first_failure and not self.reads_draft and not self.decided_by_noise
