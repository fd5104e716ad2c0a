"""The verification methods: name -> module and class of its rule. A method is imported where its rule is asked for."""

from __future__ import annotations

from enum import Enum
from functools import cached_property
from importlib import import_module
from typing import Any, Self

from .rule import Rule, check_complete
from .traits import MethodTraits


class _Named(Enum):
    """A name, its `value`, with PACKAGE.MODULE:CLASS of its rule, relative to this package."""

    _value_: str
    path: str

    def __new__(cls, value: Any, path: str = "") -> Self:
        member = object.__new__(cls)
        member._value_, member.path = value, path
        return member

    @cached_property
    def kind(self) -> type[Rule]:
        """The class of its rule.

        Raises:
            ValueError: the rule is incomplete.
        """
        module, _, name = self.path.partition(":")
        found: type[Rule] = getattr(import_module(module, __package__), name)
        check_complete(found, self.value)
        return found

    @cached_property
    def parameter_names(self) -> tuple[str, ...]:
        """Of its parameters; kept, because a graph that is being compiled cannot ask a class for its fields."""
        return self.kind.settings()

    @property
    def traits(self) -> MethodTraits:
        return self.kind.traits

    def rule(self, **parameters: Any) -> Rule:
        """The rule with its parameters; those that are not given have their defaults.

        Raises:
            ValueError: it has no such parameter, or one is out of range.
        """
        ours = self.parameter_names
        wrong = [name for name in parameters if name not in ours]
        if wrong:
            raise ValueError(
                f"{self.value}: expected parameters among {', '.join(ours) or '(none)'}, found {', '.join(wrong)}"
            )
        return self.kind(**parameters)


class VerificationMethod(_Named):
    """The rule that turns draft tokens into output tokens; reports list methods in this order."""

    strict = "strict", ".strict:Strict"
    coupled = "coupled", ".coupled:Coupled"
    greedy = "greedy", ".greedy:Greedy"
    probabilistic = "probabilistic", ".probabilistic:Probabilistic"
    block = "block", ".block:Block"
    typical = "typical", ".typical:Typical"
    lenient = "lenient", ".lenient:Lenient"
    threshold = "threshold", ".threshold:Threshold"
    fly = "fly", ".fly:Fly"
    synthetic = "synthetic", ".synthetic:Synthetic"
    pr35461 = "pr35461", ".pr35461:PR35461"


class TreeMethod(_Named):
    """A rule that verifies trees of drafts, chains among them."""

    recursive = "recursive", ".recursive:Recursive"
    kseq = "kseq", ".kseq:KSeq"
    traversal = "traversal", ".traversal:Traversal"


NAMED_METHODS: dict[str, VerificationMethod | TreeMethod] = {
    method.value: method for method in (*VerificationMethod, *TreeMethod)
}
"""In the order in which reports list them."""
