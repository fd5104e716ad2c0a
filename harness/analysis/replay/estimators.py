"""The probability that a method accepts a draft's first i tokens or more, from the recorded terms.

Two estimators of a_i = P(A >= i), both without the noise of accepting. Drafts X_1..X_K, X_i ~ q_i given X_1..X_{i-1}.

given (the drafts): the probability given all of X_1..X_K, over the randomness of verification alone.

    strict          prod_{j<=i} p_j(X_j)
    coupled         prod_{j<=i} P(y_j = X_j | X_j)          noise of different positions is independent
    probabilistic   prod_{j<=i} min(1, p_j(X_j) / q_j(X_j))
    lenient(l)      prod_{j<=i} min(1, p_j(X_j) / (l q_j(X_j)))
    typical         prod_{j<=i} [p_j(X_j) > min(epsilon, delta exp(-H(p_j)))]
    block           1 - prod_{j>=i} (1 - h_j)               A >= i iff some j >= i passes

before (the draw): given X_1..X_{i-1} only, so that X_i, and for block all that follows, is averaged over its law.

    strict          prod_{j<i} p_j(X_j) * sum_x p_i(x) q_i(x)
    coupled         prod_{j<i} P(y_j = X_j | X_j) * sum_x P(X_i = y_i = x)
    probabilistic   prod_{j<i} min(1, p_j(X_j) / q_j(X_j)) * sum_x min(p_i(x), q_i(x))
    block           sum_x min(P_{i-1} p_i(x), q_i(x))

Block's follows from P(A >= i | X_1..X_i) = P_i, which backward induction gives: P(A >= K | ..) = h_K = P_K, and with
E[P_{i+1} | X_1..X_i] = sum_x min(P_i p_{i+1}(x), q_{i+1}(x)) = P_i - Z_i,

    P(A >= i | ..) = 1 - (1 - h_i) (1 - P_i + Z_i) = 1 - (1 - P_i) = P_i    as 1 - h_i = (1 - P_i) / (Z_i + 1 - P_i).

Each is a conditional expectation of 1{A >= i}, so both are unbiased, and at each position the second varies no more
than the first (of their sums over i, as a rule). Later positions of a draft that the run rejected early count too: they
were drawn from q given the tokens before them, and each product weighs them by the probability of being reached.

The two have the same expectation only if X_i is drawn from the very q_i that was recorded, and if no draft is left out
because of its tokens. `given` needs neither: it stands for the drafts as they are.
Which methods can be computed, with which parameters, and what they are called stands here too. This module knows
arrays; it does not know records, prompts or intervals.

Shapes: D drafts, K the largest number of draft tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

from harness.records.acceptance_terms import Floats, RoundTerms
from kernels.methods import Method as AnyMethod
from kernels.methods import Rule, VerificationMethod
from kernels.verification import Verification

Method = VerificationMethod


class Estimator(Enum):
    """On what the probability is conditioned."""

    given = "given"
    before = "before"


def estimators_of(rule: Verification) -> tuple[Estimator, ...]:
    """The estimators that the terms allow: of lossy methods no masses are recorded."""
    return (Estimator.given, Estimator.before) if rule.rule.mass else (Estimator.given,)


def reaching(terms: RoundTerms, rule: Verification, estimator: Estimator) -> Floats:
    """[D, K] probability that each draft's first i tokens are accepted; 0 where it has no i-th token.

    Args:
        terms: the drafts.
        rule: the method with its parameters, which has a closed form on them.
        estimator: one of `estimators_of` the rule.
    """
    assert estimator in estimators_of(rule)
    passing = _passing(terms, rule)
    if not rule.traits.stops_at_first_failure:
        return terms.of_positions(rule.rule.mass) if estimator is Estimator.before else _some_passes(passing)
    if estimator is Estimator.given:
        return passing.cumprod(axis=1)
    before = np.ones_like(passing)
    before[:, 1:] = passing[:, :-1].cumprod(axis=1)
    return before * terms.of_positions(rule.rule.mass)


@dataclass(frozen=True)
class _Recorded:
    """[D, K] columns of the terms, as the rules of methods ask for them."""

    terms: RoundTerms

    @property
    def target_prob(self) -> Floats:
        return self.terms.of_positions("target_prob")

    @property
    def draft_prob(self) -> Floats:
        return self.terms.of_positions("draft_prob")

    @property
    def coupled_prob(self) -> Floats:
        return self.terms.of_positions("coupled_prob")

    @property
    def target_certainty(self) -> Floats:
        certainty: Floats = np.exp(-self.terms.of_positions("target_entropy"))
        return certainty

    @property
    def block_threshold(self) -> Floats:
        return self.terms.of_positions("block_threshold")


def _passing(terms: RoundTerms, rule: Verification) -> Floats:
    """[D, K] probability that each draft token passes by the odds of the rule; 0 where it cannot have been drawn."""
    odds = rule.rule.recorded_odds(_Recorded(terms))
    assert odds is not None, f"{rule.method.value} has no closed form on recorded drafts"
    numerator, denominator = odds
    possible = np.asarray(denominator) > 0
    passing: Floats = np.minimum(1.0, numerator / np.where(possible, denominator, 1.0)) * possible
    return passing


def _some_passes(passing: Floats) -> Floats:
    """[D, K] probability that position i or a later one passes, each at its own rate."""
    return 1.0 - (1.0 - passing)[:, ::-1].cumprod(axis=1)[:, ::-1]


def is_replayed(method: AnyMethod) -> bool:
    """Whether a method has a closed form on given drafts; greedy is what those are at temperature 0."""
    return method.kind.recorded_odds is not Rule.recorded_odds and not method.traits.greedy_only


REPLAYED = tuple(method for method in Method if is_replayed(method))
"""The methods of ours with a closed form on given drafts."""
LENIENCIES = (0.9, 0.7, 0.5)
THRESHOLDS = ((0.09, 0.3),)
"""(epsilon, delta) of typical verification."""


def replayed_rules(
    leniencies: Sequence[float] = LENIENCIES, thresholds: Sequence[tuple[float, float]] = THRESHOLDS
) -> list[Verification]:
    """The lossless methods, then typical with each pair of thresholds and lenient with each leniency.

    Raises:
        ValueError: a parameter out of range.
    """
    rules = [Verification(method) for method in REPLAYED if not method.kind.settings()]
    rules += [Verification(Method.typical, epsilon=epsilon, delta=delta) for epsilon, delta in thresholds]
    rules += [Verification(Method.lenient, leniency=leniency) for leniency in leniencies]
    return list(dict.fromkeys(rules))


def rule_name(rule: Verification) -> str:
    """The method with the parameters that it uses, as in the column `verification` of the results."""
    text = ", ".join(f"{name}={value:g}" for name, value in rule.rule.parameters.items())
    return f"{rule.method.value}({text})" if text else rule.method.value


def recorded_rule(verification: Mapping[str, Any]) -> Verification | None:
    """The rule of a cell's own configuration; None if it has no closed form."""
    name = verification["method"]
    if name == Method.greedy.value:
        return Verification(Method.strict)
    method = next((each for each in REPLAYED if each.value == name), None)
    if method is None:
        return None
    return Verification(method, **{key: value for key, value in verification.items() if key != "method"})
