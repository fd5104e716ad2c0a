"""A rule of the user's own on the reference core: called, checked, and kept to what the target allows.

Shapes: R requests, K the largest number of draft tokens of a request, V the target's vocabulary.

A row of the target with one certain token (temperature 0, or no distribution) takes neither odds nor weights from the
rule: its argmax alone is accepted and emitted, whatever the temperatures beside it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..contract import Streams
from ..methods import MethodTraits, OwnMethod, Rule
from .odds import Odds
from .proposal import Proposal


@dataclass(frozen=True)
class Checked(Rule):
    """The rule of a method of the user's own."""

    method: OwnMethod

    @property
    def traits(self) -> MethodTraits:  # type: ignore[override]
        return self.method.traits

    def odds(self, proposal: Proposal) -> Odds:
        return own_odds(self.method, proposal)

    def revised(self, passes: Tensor, proposal: Proposal) -> Tensor:
        found = self.method.own.revised(passes, proposal)
        if not isinstance(found, Tensor) or found.shape != passes.shape or found.dtype != torch.bool:
            raise ValueError(
                f"{self.method.value}: expected `revised` to return {list(passes.shape)} bool, found {found!r}"
            )
        return found

    def emission(self, proposal: Proposal, num_accepted: Tensor) -> Tensor:
        return own_emission(self.method, proposal, num_accepted)

    def scale(self, proposal: Proposal, num_accepted: Tensor) -> Tensor:
        return self.method.own.scale(proposal, num_accepted)

    def uniforms(self, streams: Streams, positions: Tensor) -> Tensor:
        return self.method.own.uniforms(streams, positions)

    def choose(self, weights: Tensor, streams: Streams, position: Tensor, recovers: Tensor) -> Tensor:
        return self.method.own.choose(weights, streams, position, recovers)

    def excess(self, proposal: Proposal, uniforms: Tensor) -> Tensor:
        if type(self.method.own).excess is Rule.excess:
            return super().excess(proposal, uniforms)
        return self.method.own.excess(proposal, uniforms)

    def with_revision(self, to_pass: Tensor, to_fail: Tensor, proposal: Proposal) -> tuple[Tensor, Tensor]:
        return self.method.own.with_revision(to_pass, to_fail, proposal)


def own_odds(method: OwnMethod, proposal: Proposal) -> Odds:
    """[R, K] the method's odds; 0 from the first draft token on that the target cannot emit, such as a forbidden one.

    Raises:
        ValueError: `odds` returns something else, or a usable draft token has no odds.
    """
    found, shape = method.own.odds(proposal), proposal.token_ids.shape
    if not isinstance(found, Odds):
        raise ValueError(f"{method.value}: expected `odds` to return kernels.reference.odds.Odds, found {found!r}")
    for name, values in found._asdict().items():
        _check_shape(method, f"the {name} of `odds`", values, shape)
    numerator, denominator = found.numerator.double(), found.denominator.double()
    certain = proposal.target.certain[proposal.rows[:, : shape[1]]] >= 0
    asked = proposal.usable & ~certain
    fits = numerator.isfinite() & (numerator >= 0) & (denominator > 0)
    wrong = (asked & ~fits).nonzero().tolist()
    if wrong:
        request, place = wrong[0]
        raise ValueError(
            f"{method.value}: expected odds with a finite numerator of 0 or more and a denominator above 0, found "
            f"{float(numerator[request, place])} / {float(denominator[request, place])} for draft token {place + 1} "
            f"of request {request}"
        )
    possible = (proposal.target_logprobs > -torch.inf).long().cumprod(dim=1).bool()
    numerator = torch.where(asked, numerator, 1.0).masked_fill(~possible, 0.0)
    return Odds(numerator, torch.where(asked, denominator, 1.0))


def own_emission(method: OwnMethod, proposal: Proposal, num_accepted: Tensor) -> Tensor:
    """[R, V] float64 the method's weights after `num_accepted` ([R] int64) tokens; 0 where the target's logit is -inf.

    Raises:
        ValueError: `emission` returns something else, or a row without a token that may follow.
    """
    rows = proposal.rows.gather(1, num_accepted[:, None])[:, 0]
    found, logits = method.own.emission(proposal, num_accepted), proposal.target.logits[rows]
    _check_shape(method, "`emission`", found, logits.shape)
    certain = proposal.target.certain[rows] >= 0
    weights = found.double().masked_fill(logits == -torch.inf, 0.0)
    weights[certain] = proposal.target.probs(rows[certain])
    fits = (weights.isfinite() & (weights >= 0)).all(dim=1) & (weights.sum(dim=1) > 0)
    wrong = (~fits).nonzero()[:, 0].tolist()
    if wrong:
        row = weights[wrong[0]]
        raise ValueError(
            f"{method.value}: expected `emission` to return finite weights of 0 or more, some of them above 0 for "
            f"tokens that may follow; found {float(row.min())} to {float(row.max())} for request {wrong[0]}"
        )
    return weights


def _check_shape(method: OwnMethod, name: str, values: object, shape: torch.Size) -> None:
    if not isinstance(values, Tensor) or values.shape != shape or not values.is_floating_point():
        what = f"{list(values.shape)} {values.dtype}" if isinstance(values, Tensor) else repr(values)
        raise ValueError(f"{method.value}: expected {name} to be {list(shape)} float64, found {what}")
