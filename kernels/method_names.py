"""The verification methods by name, those for chains and those for trees; this module does not know torch."""

from __future__ import annotations

from .methods import TreeMethod, VerificationMethod

NAMED_METHODS: dict[str, VerificationMethod | TreeMethod] = {
    method.value: method for method in (*VerificationMethod, *TreeMethod)
}
"""In the order in which reports list them."""


def parameters_of(name: str) -> tuple[str, ...]:
    """Settings of the section verification that the method of this name uses; none for a method of the user's own."""
    return NAMED_METHODS[name].traits.parameters if name in NAMED_METHODS else ()
