"""A verification method of the user's own, in the place of a built-in name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .rule import Rule, check_complete
from .traits import MethodTraits

NOT_FOR_OWN = ("decided_by_noise", "greedy_only", "ignores_tokens", "expected_is_recorded", "siblings", "on_chains")
"""Traits that a rule of the user's own cannot have: code elsewhere belongs to them."""


@dataclass(frozen=True)
class OwnMethod:
    """A rule of the user's own, named as `verification.method=PACKAGE.MODULE:NAME`; NAME is a Rule class or object.

    With hooks it runs on the kernels, without on the reference core, on any device. A request at temperature 0 accepts
    and emits the target's argmax alone, unless the traits say `defers`; no request accepts or emits a token that a mask
    forbids. On the reference core what its functions return is checked.

    Raises:
        ValueError: the rule is incomplete, or its traits hold one of NOT_FOR_OWN.
    """

    own: Rule
    value: str = "own"
    """Its name in records: the path that it was imported by."""

    def __post_init__(self) -> None:
        if not isinstance(self.own, Rule):
            raise ValueError(f"{self.value}: expected a kernels.methods.Rule, found {self.own!r}")
        check_complete(type(self.own), self.value)
        given = [name for name in NOT_FOR_OWN if getattr(self.traits, name)]
        if given:
            raise ValueError(
                f"{self.value}: expected traits without {', '.join(NOT_FOR_OWN)}, found {', '.join(given)}"
            )

    @property
    def kind(self) -> type[Rule]:
        """The class of its rule."""
        return type(self.own)

    @property
    def traits(self) -> MethodTraits:
        return self.own.traits

    def rule(self, **parameters: Any) -> Rule:
        """The rule; the object brings its parameters."""
        if parameters:
            raise ValueError(f"{self.value}: expected parameters in the object itself, found {', '.join(parameters)}")
        return self.own
