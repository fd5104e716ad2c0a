"""What a verification method is: its parameters, what is true of it, its rule on the reference core and on the device.

A method is a frozen dataclass of its parameters in a module of its own. A method of the user's own is the same, outside
of the package. This module knows neither torch nor triton, so that settings and reports can read it: a rule imports
torch inside its functions, and its hooks for the kernels stand in a module that is imported where they are launched.

Shapes: R requests, K the largest number of draft tokens of a request, V the target's vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, Self

from .traits import MethodTraits

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from ..contract import Draft, Streams
    from ..reference.odds import Odds
    from ..reference.proposal import Proposal
    from ..reference.tree_proposal import TreeProposal
    from ..reference.tree_walk import Passes, Walked
    from .hooks import Hooks


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


class RecordedTerms(Protocol):
    """What a recorded run knows of each draft token X: arrays of one shape, float64 in [0, 1]."""

    @property
    def target_prob(self) -> Any:
        """p(X)."""

    @property
    def draft_prob(self) -> Any:
        """q(X)."""

    @property
    def coupled_prob(self) -> Any:
        """The probability that the target, with the noise that X was drawn with, draws X."""

    @property
    def target_certainty(self) -> Any:
        """exp(-H), H the entropy of the target row in nats."""

    @property
    def block_threshold(self) -> Any:
        """h_i of block verification."""


class Look(NamedTuple):
    """How figures draw a method: told apart by colour-blind readers, and in grey."""

    color: str
    marker: Any
    linestyle: Any


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

    The fields are also its settings: a docstring under each is its help, `__post_init__` raises ValueError for a value
    out of range.

    A subclass has `traits`, and `odds` or `run`. On the reference core draft token X_i passes iff
    u_i * denominator < numerator of its odds; which tokens are accepted then follows from the traits, and the token
    after them is drawn from `emission`. With `hooks` it runs on the kernels.
    """

    traits: ClassVar[MethodTraits]
    probe_words: ClassVar[str] = ""
    """The parameters of `probe` in words."""
    look: ClassVar[Look | None] = None
    """In figures; None takes one that no other method has."""
    mass: ClassVar[str] = ""
    """What records call the probability that X_i is accepted before it is drawn, given that those before it are (for
    rules that go up to the last success: that some X_j, j >= i, is); empty: it is not recorded."""

    @classmethod
    def settings(cls) -> tuple[str, ...]:
        """The names of its parameters."""
        return tuple(item.name for item in fields(cls))

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters by name."""
        return {item.name: getattr(self, item.name) for item in fields(self)}

    def at(self, num_draft_tokens: int) -> Self:
        """The rule as the sampling core takes it for drafts of so many tokens, its open parameters chosen."""
        return self

    def refusal(self, num_draft_tokens: int, levels: Sequence[int] | None) -> str | None:
        """Why it cannot verify such drafts, and what to do instead; None if it can.

        Args:
            num_draft_tokens: of a round, at most.
            levels: of trees the most children of a node of each depth, from the context down; None for chains.
        """
        return None

    def unused(self, is_tree: bool) -> Mapping[str, str]:
        """Parameters that chains, or trees, do not use, and with what they would be used."""
        return {}

    def for_drafts(self, num_draft_tokens: int, is_tree: bool) -> Self:
        """The rule without what such drafts do not use: equal for settings that cannot differ in their result."""
        unused = self.unused(is_tree)
        defaults = {item.name: item.default for item in fields(self) if item.default is not MISSING}
        return replace(self, **{name: value for name, value in defaults.items() if name in unused})

    def recorded(self) -> dict[str, Any]:
        """The parameters as a record holds them."""
        return self.parameters

    @classmethod
    def of_recorded(cls, parameters: Mapping[str, Any]) -> Self:
        """The reverse of `recorded`."""
        return cls(**parameters)

    def recorded_odds(self, terms: RecordedTerms) -> tuple[Any, Any] | None:
        """(numerator, denominator) of the odds that recorded draft tokens pass; None where what records hold does not
        give them."""
        return None

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
        # what may be left open is a number of tokens
        kinds: list[Any] = [int if item.default is None else type(item.default) for item in given]
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
