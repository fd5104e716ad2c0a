"""A section of settings whose value is one of several dataclasses, and how such a value is written.

A tag chooses the member: a built-in name, or PACKAGE.MODULE:NAME, an object of the user's own, which goes the same way.
Plain values and records hold the tag beside the fields of the chosen member, and nothing of the others. This module
knows no member; a member's module is imported when the member is asked for.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from enum import Enum
from functools import cache, cached_property, reduce
from importlib import import_module
from operator import or_
from types import UnionType
from typing import Any, Self, TypeVar

from harness.config.imported import ImportPath, is_import_path, named


class Member(Enum):
    """A built-in member: its name, with PACKAGE.MODULE:CLASS of its settings."""

    _value_: str
    path: str

    def __new__(cls, value: Any, path: str = "") -> Self:
        member = object.__new__(cls)
        member._value_, member.path = value, path
        return member

    @cached_property
    def named(self) -> Any:
        """What its path names."""
        module, _, name = self.path.partition(":")
        return getattr(import_module(module), name)

    @property
    def settings(self) -> type[Any]:
        """The class of its settings."""
        found: type[Any] = self.named
        return found

    @classmethod
    def paths(cls) -> dict[str, str]:
        """PACKAGE.MODULE:CLASS of each, by name."""
        return {member.value: member.path for member in cls}


AnyMember = TypeVar("AnyMember", bound=Member)


def member_of(value: object, members: type[AnyMember]) -> AnyMember | ImportPath:
    """The member whose settings a value is; the path of its class for one of the user's own."""
    return _member_at(path_of(type(value)), members)


@cache
def _member_at(path: str, members: type[AnyMember]) -> AnyMember | ImportPath:
    return next((member for member in members if member.path == path), ImportPath(path))


def path_of(kind: type) -> str:
    """PACKAGE.MODULE:CLASS."""
    return f"{kind.__module__}:{kind.__qualname__}"


def name_of(value: object, paths: Mapping[str, str]) -> str:
    """The name of the member whose settings a value is, by the paths of all; the path of one of the user's own."""
    path = path_of(type(value))
    return next((name for name, ours in paths.items() if ours == path), path)


@dataclass(frozen=True)
class Union:
    """A section with its members."""

    section: str
    tag: str
    """The setting that names the member."""
    doc: str
    """What the section is."""
    tag_doc: str
    """What the tag chooses."""
    names: tuple[str, ...]
    """Of the built-in members, in the order in which they are listed."""
    default: str
    """The member where none is named."""
    kind: type
    """Of the values that a cell holds."""
    kind_of: Callable[[str], type]
    """Name -> dataclass with the fields of the member; ValueError where an object of the user's own is none."""
    build: Callable[[str, Mapping[str, Any]], Any]
    """(name, values by field) -> the value that a cell holds; ValueError where a value is out of range."""
    of_record: Callable[[str, Mapping[str, Any]], Any]
    """The same of what a record holds."""
    parts: Callable[[Any], tuple[str, Mapping[str, Any]]]
    """The reverse of `build`."""
    unused: Callable[[Any, bool], Mapping[str, str]] = lambda value, is_tree: {}
    """(value, whether drafts are trees) -> the fields that such a cell does not use, and with what they would be."""

    @property
    def key(self) -> str:
        """Of the tag, with its section."""
        return f"{self.section}.{self.tag}"

    def check_name(self, name: str) -> None:
        """Raise ValueError unless a name is that of a built-in member, or PACKAGE.MODULE:NAME; imports nothing."""
        named(self.key, dict.fromkeys(self.names), name)

    def check(self, name: str) -> None:
        """Raise ValueError unless a name is that of a member."""
        self.check_name(name)
        if is_import_path(name):
            self.field_names(name)

    def field_names(self, name: str) -> tuple[str, ...]:
        """Of a member."""
        found = tuple(item.name for item in fields(self.kind_of(name)))
        if self.tag in found:
            raise ValueError(f"{self.key}: expected fields that are not called {self.tag}, found one in {name}")
        return found

    def members_with(self, field: str) -> tuple[str, ...]:
        """The built-in members that have a field."""
        return tuple(name for name in self.names if field in self.field_names(name))

    def with_members(self, field: str) -> str:
        """With which members a setting is used, in words."""
        *others, last = self.members_with(field) or ("one that has it",)
        return f"with {self.section}={', '.join(others)}{' or ' if others else ''}{last}"

    def of_plain(self, values: Mapping[str, Any]) -> Any:
        """The value of what a record holds, tag and fields beside each other."""
        return self.of_record(values[self.tag], {name: item for name, item in values.items() if name != self.tag})

    def has(self, value: Any, field: str) -> bool:
        """Whether the member that a cell holds has a field."""
        return field in self.parts(value)[1]


def union_of(
    base: type[Any],
    paths: Mapping[str, str],
    *,
    own: tuple[type[Any], str] | None = None,
    section: str,
    tag: str,
    default: str,
    doc: str,
    tag_doc: str,
) -> Union:
    """A section whose values are settings of one base class, which are the fields of their dataclasses.

    Args:
        base: of the settings of all members, those of the user's own too.
        paths: PACKAGE.MODULE:CLASS of the built-in members, by name.
        own: settings of what the user names in the place of settings, and such an object in words; its path is their
            field `builder`, and the fields of the base are its settings.
        section, default, doc, tag_doc: see Union.
        tag: also what the base calls the name of a value.
    """
    key = f"{section}.{tag}"

    def kind_of(name: str) -> type[Any]:
        named(key, paths, name)
        found = ImportPath(paths.get(name, name)).load(key)
        if isinstance(found, type) and issubclass(found, base):
            return found
        if own is not None and callable(found):
            return base
        expected = f"settings ({path_of(base).replace(':', '.')})" + (f", {own[1]}" if own else "")
        raise ValueError(f"{key}: expected {expected}, found {name}: {found!r}")

    def build(name: str, values: Mapping[str, Any]) -> Any:
        kind, given = kind_of(name), {field: immutable(value) for field, value in values.items()}
        return own[0](builder=ImportPath(name), **given) if own is not None and kind is base else kind(**given)

    def parts(value: Any) -> tuple[str, Mapping[str, Any]]:
        name, is_own = getattr(value, tag), own is not None and isinstance(value, own[0])
        values = {item.name: getattr(value, item.name) for item in fields(base if is_own else value)}
        return name.value if isinstance(name, Enum | ImportPath) else name, values

    return Union(
        section=section,
        tag=tag,
        doc=doc,
        tag_doc=tag_doc,
        names=tuple(paths),
        default=default,
        kind=base,
        kind_of=kind_of,
        build=build,
        of_record=build,
        parts=parts,
    )


def with_lists(hint: Any) -> Any:
    """The type of a field as files and command lines have it: with lists in the place of tuples."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple:
        return list[with_lists(inner[0])]  # type: ignore[misc]
    return reduce(or_, map(with_lists, inner)) if origin in (UnionType, typing.Union) else hint


def mutable(value: Any) -> Any:
    """Tuples as lists, in tuples too."""
    return list(map(mutable, value)) if isinstance(value, list | tuple) else value


def immutable(value: Any) -> Any:
    """Lists as tuples, in lists too."""
    return tuple(map(immutable, value)) if isinstance(value, list | tuple) else value
