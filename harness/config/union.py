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
from functools import cached_property, reduce
from importlib import import_module
from operator import or_
from types import UnionType
from typing import Any, Self

from harness.config.imported import is_import_path, named


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

    def has(self, value: Any, field: str) -> bool:
        """Whether the member that a cell holds has a field."""
        return field in self.parts(value)[1]


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
