"""The section `verification`: a method of kernels.methods, or a rule of the user's own, with its parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from harness.config.imported import ImportPath, is_import_path
from harness.config.union import Union, immutable
from kernels.methods import NAMED_METHODS, OwnMethod, Rule, VerificationMethod
from kernels.verification import Verification

KEY = "verification.method"


@dataclass(frozen=True)
class ImportedMethod(OwnMethod):
    """A rule of the user's own that settings name; another process imports it by its path."""

    def __reduce__(self) -> Any:
        return _imported_again, (self.value, self.own.parameters)


def own_method(path: ImportPath, key: str) -> OwnMethod:
    """The method of the user's own that a setting names: a Rule class, with its defaults, or an object of one.

    Raises:
        ValueError: there is no such rule, or it is incomplete.
    """
    found = path.load(key)
    try:
        rule = found() if isinstance(found, type) and issubclass(found, Rule) else found
        return ImportedMethod(rule, path.value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{key}: {error}") from error


def verification_of(name: str, **parameters: Any) -> Verification:
    """A method with parameters; those that are not given have their defaults, or the values of the object.

    Args:
        name: built-in, or PACKAGE.MODULE:NAME.
        parameters: by name.

    Raises:
        ValueError: there is no such method, or a parameter is out of range.
        TypeError: it has no such parameter.
    """
    VERIFICATION.check_name(name)
    given = {key: immutable(value) for key, value in parameters.items()}
    if not is_import_path(name):
        return Verification(NAMED_METHODS[name], **given)
    method = own_method(ImportPath(name), KEY)
    return Verification(method).with_rule(replace(method.own, **given))


def recorded_verification(verification: Verification, is_tree: bool) -> dict[str, Any]:
    """What a record says of the verification of chains or trees: the method with the parameters that it uses."""
    unused, rule = verification.rule.unused(is_tree), verification.rule
    used = {name: value for name, value in rule.recorded().items() if name not in unused}
    return {"method": verification.method.value, **used}


def _imported_again(path: str, parameters: Mapping[str, Any]) -> OwnMethod:
    method = own_method(ImportPath(path), KEY)
    return replace(method, own=replace(method.own, **parameters))


def _kind_of(name: str) -> type[Rule]:
    return own_method(ImportPath(name), KEY).kind if is_import_path(name) else NAMED_METHODS[name].kind


def _build(name: str, values: Mapping[str, Any]) -> Verification:
    return verification_of(name, **values)


def _of_record(name: str, values: Mapping[str, Any]) -> Verification:
    found = verification_of(name)
    return found.with_rule(replace(found.rule, **values) if is_import_path(name) else found.rule.of_recorded(values))


def _unused(value: Verification, is_tree: bool) -> Mapping[str, str]:
    return value.rule.unused(is_tree)


def _parts(value: Verification) -> tuple[str, Mapping[str, Any]]:
    return value.method.value, value.rule.parameters


VERIFICATION = Union(
    section="verification",
    tag="method",
    doc="The rule that turns draft tokens into output tokens.",
    tag_doc="The rule; or PACKAGE.MODULE:NAME, one of your own (kernels.methods.Rule).",
    names=tuple(NAMED_METHODS),
    default=VerificationMethod.probabilistic.value,
    kind=Verification,
    kind_of=_kind_of,
    build=_build,
    of_record=_of_record,
    parts=_parts,
    unused=_unused,
)
