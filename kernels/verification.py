"""A verification method with its parameters; this module does not know torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from .methods import Guarantee, Method, MethodTraits, OwnMethod, Rule, TreeMethod, VerificationMethod


@dataclass(frozen=True, init=False)
class Verification:
    """A verification method with its parameters.

    Raises:
        ValueError: it is no method of kernels.methods, or a parameter is out of range.
        TypeError: the method has no such parameter.
    """

    method: Method
    rule: Rule

    def __init__(self, method: Method, **parameters: Any) -> None:
        if not isinstance(method, VerificationMethod | TreeMethod | OwnMethod):
            raise ValueError(
                "expected a method of kernels.methods (VerificationMethod, TreeMethod, or an OwnMethod), found "
                f"{method!r}"
            )
        object.__setattr__(self, "method", method)
        object.__setattr__(self, "rule", method.rule(**parameters))

    def with_rule(self, rule: Rule) -> Verification:
        """The same method with other parameters."""
        changed = object.__new__(Verification)
        method = replace(self.method, own=rule) if isinstance(self.method, OwnMethod) else self.method
        object.__setattr__(changed, "method", method)
        object.__setattr__(changed, "rule", rule)
        return changed

    def at(self, num_draft_tokens: int) -> Verification:
        """The method as the sampling core takes it for drafts of so many tokens, its open parameters chosen."""
        rule = self.rule.at(num_draft_tokens)
        return self if rule is self.rule else self.with_rule(rule)

    @property
    def traits(self) -> MethodTraits:
        return self.method.traits

    @property
    def guarantee(self) -> Guarantee:
        return self.traits.guarantee


def probe(method: Method, num_draft_tokens: int) -> Verification:
    """The method with parameters with which a check of drafts of this length sees it accept and reject; a rule of the
    user's own as it is."""
    return Verification(method, **({} if isinstance(method, OwnMethod) else method.kind.probe(num_draft_tokens)))
