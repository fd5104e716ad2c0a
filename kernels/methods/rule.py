"""What a verification method is: its parameters, what is true of it, its rule on the reference core and on the device.

A method is a frozen dataclass of its parameters in a module of its own. A method of the user's own is the same, outside
of the package. This module knows neither torch nor triton, so that settings and reports can read it: a rule imports
torch inside its functions, and its hooks for the kernels stand in a module that is imported where they are launched.

Shapes: R requests, K the largest number of draft tokens of a request, V the target's vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from ..contract import Draft, Streams
    from ..reference.odds import Odds
    from ..reference.proposal import Proposal
    from ..reference.tree_proposal import TreeProposal
    from ..reference.tree_walk import Passes, Walked
    from .hooks import Hooks
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


class FirstToken(NamedTuple):
    """How a rule makes the first token of a round, averaged over the drafts that might have been drawn.

        law(x) = kept(x) + lost p_1(x) + (1 - lost - sum kept) after(x)

    Shapes: n requests.
    """

    kept: Tensor
    """[n, V] float64, the mass that is drafted and accepted."""
    lost: Tensor
    """[n, 1] float64, the mass of drafts that cannot be verified, where the target decides."""
    after: Tensor
    """[n, V] float64, the law of the token after a rejection."""


class FirstDrafts(NamedTuple):
    """The distributions that decide about the first token of some requests, [n, V] float64 each."""

    requests: Tensor
    """[n] int64."""
    target_probs: Tensor
    drawn_probs: Tensor
    """What the first draft token is drawn from."""
    cached_probs: Tensor
    """What verification knows of it."""


@dataclass(frozen=True)
class TreeHooks:
    """How the kernels walk through the trees of a rule."""

    leaves_first: bool = False
    """A path is accepted as a whole or shortened (kernels.tree.traversal_walk); else from the context down, each child
    against what is left of its parent's row (kernels.tree.rejection_walk)."""
    shares_discount: bool = False
    """The children of a node are tested together, at a common discount (kernels.tree.kseq_ratio)."""
    ignores_tokens: bool = False
    """The path follows from rates, before a row is read (kernels.tree.synthetic)."""


@dataclass(frozen=True)
class Rule:
    """A verification method with its parameters, which are the fields of its dataclass and have defaults.

    A subclass has `traits`, and `odds` or `run`. On the reference core draft token X_i passes iff
    u_i * denominator < numerator of its odds; which tokens are accepted then follows from the traits, and the token
    after them is drawn from `emission`. With `hooks` it runs on the kernels.
    """

    traits: ClassVar[MethodTraits]
    probe_words: ClassVar[str] = ""
    """The parameters of `probe` in words."""
    further_settings: ClassVar[tuple[str, ...]] = ()
    """Settings of the section verification that it uses, beside its parameters."""

    @classmethod
    def settings(cls) -> tuple[str, ...]:
        """Settings of the section verification that it uses: its parameters, and `further_settings`."""
        return (*(item.name for item in fields(cls)), *cls.further_settings)

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters by name."""
        return {item.name: getattr(self, item.name) for item in fields(self)}

    def numbers(self) -> tuple[float, ...]:
        """The parameters one after another, as custom operations take them."""
        return tuple(map(float, self.parameters.values()))

    @classmethod
    def of_numbers(cls, numbers: Sequence[float]) -> Self:
        """The reverse of `numbers`; the last parameters may be left out.

        Raises:
            ValueError: there are too many of them.
        """
        given = fields(cls)[: len(numbers)]
        if len(numbers) > len(given):
            raise ValueError(
                f"expected at most the parameters {', '.join(cls.settings()) or '(none)'}, found {numbers}"
            )
        kinds: list[Any] = [type(item.default) for item in given]
        values = [kind(number) for kind, number in zip(kinds, numbers, strict=True)]
        return cls(**{item.name: value for item, value in zip(given, values, strict=True)})

    @classmethod
    def probe(cls, num_draft_tokens: int) -> dict[str, Any]:
        """Parameters with which a check sees it accept and reject, and a lossy rule miss the target's distribution."""
        return {}

    @classmethod
    def hooks(cls) -> Hooks | None:
        """What the kernels ask of it, the same object at every call; None where the reference core alone runs it."""
        return None

    @classmethod
    def tree_hooks(cls) -> TreeHooks | None:
        """How the kernels walk through trees by it; None where they do not."""
        return None

    def values(self, width: int) -> tuple[float, ...]:
        """The parameters as its hooks find them, in drafts of up to `width` tokens."""
        return self.numbers()

    def check(self, draft: Draft) -> None:
        """Raises ValueError where it does not verify drafts of this shape; never looks at values."""

    def odds(self, proposal: Proposal) -> Odds:
        """The round -> [R, K] odds that each draft token passes: numerators of 0 or more, denominators above 0."""
        raise NotImplementedError

    def revised(self, passes: Tensor, proposal: Proposal) -> Tensor:
        """[R, K] bool, what passes by its odds -> what passes; of rules that defer."""
        return passes

    def emission(self, proposal: Proposal, num_accepted: Tensor) -> Tensor:
        """[R, V] float64 weights, 0 or more, of the token after `num_accepted` ([R] int64) accepted ones.

        Unless a rule has its own: the target's distribution where every draft token was accepted or the rule emits from
        the target, else [p - q]+. A one-hot proposal (every proposal, unless it reads drafts) leaves p without the
        rejected token.
        """
        from ..reference.residual import emission

        return emission(
            proposal, num_accepted, None if self.traits.emits_from_target else self.scale(proposal, num_accepted)
        )

    def scale(self, proposal: Proposal, num_accepted: Tensor) -> Tensor:
        """[R] float64 P, the residual's factor of the target's distribution: [P p - q]+."""
        return proposal.target.log_normalizer.new_ones(len(num_accepted))

    def uniforms(self, streams: Streams, positions: Tensor) -> Tensor:
        """[R, K] float64, the numbers that decide about the draft tokens at some positions, [R, K] int64."""
        from ..random.streams import Purpose, uniform

        return uniform(streams.seeds[:, None], Purpose.accept, positions, streams.rounds[:, None])

    def choose(self, weights: Tensor, streams: Streams, position: Tensor, recovers: Tensor) -> Tensor:
        """[R] int64, the token after the accepted ones.

        Args:
            weights: from `emission`.
            streams: fields [R].
            position: [R] int64, of the token.
            recovers: [R] bool, whether draft tokens are left.
        """
        import torch

        from ..random.streams import Purpose, uniform
        from ..reference.choose import choose

        purposes = torch.where(recovers, int(Purpose.residual), int(Purpose.bonus))
        return choose(weights, uniform(streams.seeds, purposes, position, streams.rounds))

    def counted(self, passes: Tensor, proposal: Proposal) -> Tensor:
        """[R, K] bool, the draft tokens that pass by their odds -> [R] int64 number of accepted tokens."""
        from ..reference.odds import up_to_first_failure, up_to_last_success

        count = up_to_first_failure if self.traits.stops_at_first_failure else up_to_last_success
        return count(self.revised(passes, proposal), proposal)

    def run(
        self, proposal: Proposal, streams: Streams, noise_of: Callable[[Tensor, Tensor, int], Tensor]
    ) -> tuple[Tensor, Tensor]:
        """([R] int64 number of accepted tokens, [R] int64 the token after them).

        Args:
            proposal: the round.
            streams: fields [R].
            noise_of: gives the noise of coupled drafts, as kernels.random.streams.gumbel.
        """
        import torch

        positions = streams.positions[:, None] + torch.arange(proposal.token_ids.shape[1], device=proposal.rows.device)
        passes = self.odds(proposal).passes(self.uniforms(streams, positions))
        num_accepted = self.counted(passes, proposal)
        weights = self.emission(proposal, num_accepted)
        recovers = num_accepted < proposal.num_draft_tokens
        return num_accepted, self.choose(weights, streams, streams.positions + num_accepted, recovers)

    def walk(self, tree: TreeProposal, passes: Passes, streams: Streams) -> Walked:
        """Walk through the trees of a round; of rules for trees.

        Args:
            tree: the round.
            passes: answers about draft tokens.
            streams: fields [R], for rules that do not ask.
        """
        raise NotImplementedError

    def excess(self, proposal: Proposal, uniforms: Tensor) -> Tensor:
        """[R, K] float64, how far u * denominator lies above the numerator, in units of the relative error of a
        probability (harness.checks.agreement.acceptance_margin); negative where the draft token passes."""
        odds = self.odds(proposal)
        return relative_excess(odds, uniforms, uniforms * odds.denominator + odds.numerator)

    def with_revision(self, to_pass: Tensor, to_fail: Tensor, proposal: Proposal) -> tuple[Tensor, Tensor]:
        """[R, K] each: how much rounding it takes for a draft token to pass, and to fail, by its odds -> at all."""
        return to_pass, to_fail

    def first_token(self, proposal: Proposal, drafts: FirstDrafts) -> FirstToken | Tensor | None:
        """How the first token comes about, or at once [R] float64 its distance from the target's distribution; None:
        a lossy rule that is not known in closed form (kernels.reference.output_tv)."""
        return None

    def knows_first_token(self, num_draft_tokens: int, draws_unrounded: bool) -> bool:
        """Whether `first_token` knows it for drafts of up to so many tokens, drawn from the very distribution that is
        compared with, or before that was rounded."""
        return type(self).first_token is not Rule.first_token


DECIDING = ("odds", "revised", "emission", "scale", "uniforms", "choose", "counted", "run")
"""Functions of a rule that its hooks repeat for the kernels."""


def relative_excess(odds: Odds, uniforms: Tensor, scale: Tensor) -> Tensor:
    """[R, K] float64, (u * denominator - numerator) / scale."""
    import torch

    return (uniforms * odds.denominator - odds.numerator) / scale.clamp(min=torch.finfo(torch.float64).tiny)


def check_complete(kind: type[Rule], name: str) -> None:
    """Raises ValueError where a rule lacks what both cores need, or has hooks of another one."""
    traits = getattr(kind, "traits", None)
    if not isinstance(traits, MethodTraits):
        raise ValueError(f"{name}: expected a rule with `traits`, a kernels.methods.MethodTraits, found none")
    if all(getattr(kind, hook) is getattr(Rule, hook) for hook in ("odds", "run", "walk")):
        raise ValueError(f"{name}: expected a rule with `odds` (or `run`, or `walk` of trees), found none of them")
    if traits.defers != (kind.revised is not Rule.revised):
        raise ValueError(
            f"{name}: expected `revised` of rules whose traits say `defers`, and of those alone, found "
            f"defers={traits.defers}"
        )
    order = kind.__mro__
    hooked = next(order.index(each) for each in order if "hooks" in vars(each))
    changed = [name for name in DECIDING if any(name in vars(each) for each in order[:hooked])]
    if changed and hooked < order.index(Rule):
        raise ValueError(
            f"{name}: expected `hooks` of its own beside {', '.join(changed)}, found those of "
            f"{order[hooked].__qualname__}, a rule for the kernels that is another one; return None where it has none"
        )
