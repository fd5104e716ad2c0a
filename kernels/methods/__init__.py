"""The verification methods: a module each, with its parameters, what is true of it, and its rule on both cores.

    rule.py, traits.py what a rule is, and what is true of one
    table.py           names -> modules
    own.py             a method of the user's own
    NAME.py            a method: parameters, traits, rule on the reference core; imports no torch at its top
    hooks.py           what the kernels ask of a rule
    NAME_device.py     its part of the kernels

Settings and reports read this package: it imports neither torch nor triton.
"""

from collections.abc import Callable

from .own import NOT_FOR_OWN, OwnMethod
from .rule import Rule
from .table import NAMED_METHODS, TreeMethod, VerificationMethod
from .traits import ANY_DRAFTS, OWN_NOISE, SMALLEST_REST, DraftSampling, Guarantee, MethodTraits, SiblingDraws

__all__ = [
    "ANY_DRAFTS",
    "NAMED_METHODS",
    "NOT_FOR_OWN",
    "OWN_NOISE",
    "SMALLEST_REST",
    "DraftSampling",
    "Guarantee",
    "Method",
    "MethodTraits",
    "OwnMethod",
    "Rule",
    "SiblingDraws",
    "TreeMethod",
    "VerificationMethod",
    "methods_with",
]

Method = VerificationMethod | TreeMethod | OwnMethod


def methods_with(has: Callable[[MethodTraits], object]) -> frozenset[VerificationMethod]:
    """The methods for chains whose traits are so."""
    return frozenset(method for method in VerificationMethod if has(method.traits))
