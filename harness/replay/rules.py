"""Which verification methods a replay can work out, with which parameters, and what they are called.

This module knows methods; it does not know terms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.replay.estimators import TOKEN_BY_TOKEN
from kernels.methods import Verification, VerificationMethod

Method = VerificationMethod

REPLAYED = tuple(method for method in Method if method in TOKEN_BY_TOKEN or method is Method.block)
"""Methods with a closed form on given drafts. Not pr35461, whose draft and acceptance share their noise, nor synthetic,
which does not look at the tokens; greedy is what all of these are at temperature 0."""
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
    rules = [Verification(method) for method in REPLAYED if not method.traits.parameters]
    rules += [Verification(Method.typical, epsilon=epsilon, delta=delta) for epsilon, delta in thresholds]
    rules += [Verification(Method.lenient, leniency=leniency) for leniency in leniencies]
    return list(dict.fromkeys(rules))


def rule_name(rule: Verification) -> str:
    """The method with the parameters that it uses, as in the column `verification` of the results."""
    given = {name: getattr(rule, name) for name in rule.traits.parameters}
    text = ", ".join(f"{name}={value:g}" for name, value in given.items())
    return f"{rule.method.value}({text})" if text else rule.method.value


def recorded_rule(verification: Mapping[str, Any]) -> Verification | None:
    """The rule of a cell's own configuration; None if it has no closed form."""
    name = verification["method"]
    if name == Method.greedy.value:
        return Verification(Method.strict)
    method = next((each for each in REPLAYED if each.value == name), None)
    if method is None:
        return None
    return Verification(method, **{name: verification[name] for name in method.traits.parameters})
