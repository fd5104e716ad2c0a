"""The verification methods and what is true of each: the one table from which every set of methods is derived.

What a method does stands in kernels.reference. This module does not know torch, so that settings and reports can read
it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from .reference.odds import Odds
    from .reference.proposal import Proposal


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


class VerificationMethod(Enum):
    """The rule that turns draft tokens into output tokens; reports list methods in this order."""

    strict = "strict"
    coupled = "coupled"
    greedy = "greedy"
    probabilistic = "probabilistic"
    block = "block"
    typical = "typical"
    lenient = "lenient"
    fly = "fly"
    synthetic = "synthetic"
    pr35461 = "pr35461"

    @property
    def traits(self) -> MethodTraits:
        return METHODS[self]


class TreeMethod(Enum):
    """A rule that verifies trees of drafts, chains among them."""

    recursive = "recursive"
    kseq = "kseq"
    traversal = "traversal"

    @property
    def traits(self) -> MethodTraits:
        return TREE_METHODS[self]


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
    parameters: tuple[str, ...] = ()
    """Settings of the section verification that it uses."""
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
    def keeps_argmax(self) -> bool:
        """At temperature 0 it accepts and emits the target's argmax alone."""
        return not self.ignores_tokens and not self.defers

    @property
    def shares_no_noise(self) -> bool:
        """No draw of a draft decides about a token that is emitted, so that coupled drafts are as good as sampled."""
        return self.stops_at_first_failure and not self.reads_draft and not self.decided_by_noise


METHODS = {
    VerificationMethod.strict: MethodTraits(Guarantee.lossless, is_strict_on_one_hot=True, expected_is_recorded=True),
    VerificationMethod.coupled: MethodTraits(
        Guarantee.lossless,
        draft_samplings=(DraftSampling.coupled, DraftSampling.greedy),
        decided_by_noise=True,
        emits_from_target=True,
        is_strict_on_one_hot=True,
    ),
    VerificationMethod.greedy: MethodTraits(
        Guarantee.lossless,
        draft_samplings=(DraftSampling.greedy, DraftSampling.sampled, DraftSampling.coupled),
        greedy_only=True,
        is_strict_on_one_hot=True,
    ),
    VerificationMethod.probabilistic: MethodTraits(
        Guarantee.lossless,
        draft_samplings=OWN_NOISE,
        reads_draft=True,
        is_strict_on_one_hot=True,
        expected_is_recorded=True,
    ),
    VerificationMethod.block: MethodTraits(
        Guarantee.lossless,
        draft_samplings=OWN_NOISE,
        reads_draft=True,
        stops_at_first_failure=False,
        is_strict_on_one_hot=True,
        expected_is_recorded=True,
    ),
    VerificationMethod.typical: MethodTraits(Guarantee.lossy, parameters=("epsilon", "delta"), emits_from_target=True),
    VerificationMethod.lenient: MethodTraits(
        Guarantee.lossy, draft_samplings=OWN_NOISE, parameters=("leniency",), reads_draft=True
    ),
    VerificationMethod.fly: MethodTraits(
        Guarantee.lossy,
        draft_samplings=OWN_NOISE,
        parameters=("fly_window_size", "fly_entropy_threshold", "fly_entropy_top_k"),
        reads_draft=True,
        defers=True,
    ),
    VerificationMethod.synthetic: MethodTraits(
        Guarantee.synthetic,
        parameters=("synthetic_rates", "synthetic_tree_rates", "synthetic_length", "profile"),
        emits_from_target=True,
        ignores_tokens=True,
        siblings=tuple(SiblingDraws),
    ),
    VerificationMethod.pr35461: MethodTraits(
        Guarantee.biased, draft_samplings=(DraftSampling.coupled,), reads_draft=True, decided_by_noise=True
    ),
}


TREE_METHODS = {
    TreeMethod.recursive: MethodTraits(
        Guarantee.lossless,
        OWN_NOISE,
        reads_draft=True,
        is_strict_on_one_hot=True,
        siblings=tuple(SiblingDraws),
        on_chains=VerificationMethod.probabilistic,
    ),
    TreeMethod.kseq: MethodTraits(
        Guarantee.lossless,
        (DraftSampling.sampled,),
        reads_draft=True,
        siblings=(SiblingDraws.independent,),
        on_chains=VerificationMethod.probabilistic,
    ),
    TreeMethod.traversal: MethodTraits(
        Guarantee.lossless,
        OWN_NOISE,
        reads_draft=True,
        stops_at_first_failure=False,
        is_strict_on_one_hot=True,
        siblings=tuple(SiblingDraws),
        on_chains=VerificationMethod.block,
    ),
}


NOT_FOR_OWN = (
    "parameters",
    "decided_by_noise",
    "greedy_only",
    "ignores_tokens",
    "is_strict_on_one_hot",
    "defers",
    "expected_is_recorded",
    "siblings",
    "on_chains",
)
"""Traits that an OwnMethod cannot have."""


@dataclass(frozen=True)
class OwnMethod:
    """A verification method of the user's own, named as `verification.method=PACKAGE.MODULE:NAME`.

    It runs on the reference core, on any device. Draft token X_i passes iff u_i * denominator < numerator of its
    `odds`, u_i uniform and independent of all else; which tokens are accepted then follows from the traits. The token
    after them is drawn from `emission`, or without one from the target's distribution p where every draft token was
    accepted or `emits_from_target` holds, else from [p - q]+; a one-hot proposal (every proposal, unless `reads_draft`
    holds) leaves p without the rejected token. A request at temperature 0 accepts and emits the target's argmax alone,
    whatever the functions return; no request accepts or emits a token that a mask forbids. What they return is checked.

    A whole method, in my_rules.py: strict verification with half the acceptance, lossless.

        from kernels.methods import Guarantee, MethodTraits, OwnMethod
        from kernels.reference import residual
        from kernels.reference.odds import Odds

        def odds(proposal):
            return Odds(0.5 * proposal.target_logprobs.exp(), proposal.draft_logprobs.exp())

        def emission(proposal, num_accepted):
            weights = residual.emission(proposal, num_accepted, scale=None)
            rejects = (num_accepted < proposal.num_usable).nonzero()[:, 0]
            weights[rejects, proposal.token_ids[rejects, num_accepted[rejects]]] *= 0.5
            return weights

        half_strict = OwnMethod(odds, MethodTraits(Guarantee.lossless), emission)

    Then `verification.method=my_rules:half_strict` runs it; certification tests whether it is lossless as it claims.

    Raises:
        ValueError: a field is not of its type, or the traits hold one of NOT_FOR_OWN.
    """

    odds: Callable[[Proposal], Odds]
    """The round (kernels.reference.proposal) -> [R, K] odds (kernels.reference.odds) that each draft token passes;
    finite numerators of 0 or more, denominators above 0."""
    traits: MethodTraits
    emission: Callable[[Proposal, Tensor], Tensor] | None = None
    """The round and [R] int64 numbers of accepted tokens -> [R, V] float64 weights of the next token, finite, 0 or
    more, with a positive sum in each row."""
    value: str = "own"
    """Its name in records: the path that it was imported by."""

    def __post_init__(self) -> None:
        if not callable(self.odds) or not isinstance(self.traits, MethodTraits):
            raise ValueError(
                f"OwnMethod: expected a function `odds` and MethodTraits, found {self.odds!r} and {self.traits!r}"
            )
        given = [name for name in NOT_FOR_OWN if getattr(self.traits, name)]
        if given:
            raise ValueError(f"OwnMethod: expected traits without {', '.join(NOT_FOR_OWN)}, found {', '.join(given)}")


Method = VerificationMethod | TreeMethod | OwnMethod


def methods_with(has: Callable[[MethodTraits], object]) -> frozenset[VerificationMethod]:
    """The methods of the table whose traits are so."""
    return frozenset(method for method, traits in METHODS.items() if has(traits))
