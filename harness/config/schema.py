"""Every setting as a flat list: its key, type, default, choices and the docstring under its field.

The command line's help and its error messages read from here, so they cannot drift from the schema. This module does
not know Hydra nor the values of a run; the options of a group are the files in its folder under conf/. The checks of
settings that a command takes as flags are here too; their messages name the flag of a field.
"""

from __future__ import annotations

import ast
import inspect
import sys
import types
import typing
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass, replace
from difflib import get_close_matches
from enum import Enum
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from harness.config.imported import FORM, TextOrTexts
from harness.config.run import ONLY_IN_FILES, RUN_UNIONS, RunConfig
from harness.config.union import Union, mutable, with_lists

_HARNESS = Path(__file__).resolve().parents[1]
CONF = (_HARNESS if (_HARNESS / "conf").is_dir() else _HARNESS.parent) / "conf"
"""Folder of the composed files, one folder for each group of options: within an installed package, beside it in a
checkout."""

_TYPE_WORDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    str | list[str]: "text, or a list such as [first,second]",
    list[str]: "a list such as [first,second]",
    list[Any]: "a list such as [first,second]",
    list[int]: "a list of whole numbers such as [2,18,33]",
    list[float]: "a list of numbers such as [0.8,0.6]",
    list[list[float]]: "a list of lists of numbers such as [[0.7,0.1],[0.6]]",
    tuple[str, ...]: "a list such as first,second",
    tuple[float, ...]: "a list of numbers such as 0.8,0.6",
}


class SettingsError(ValueError):
    """A setting that the user gave is wrong; the message says what was given, what is valid and what may be meant."""


@dataclass(frozen=True)
class Setting:
    """One setting that a command line may give."""

    key: str
    type: Any
    """int, float, bool, str, a list or tuple of str or float, str or a list of it, or an Enum class."""
    optional: bool
    """Whether null is a value."""
    default: Any
    doc: str
    imports: bool = False
    """Whether PACKAGE.MODULE:NAME is a value beside those of the type."""
    members: tuple[str, ...] = ()
    """Of a section that is a union, the members that have the setting; empty where all cells do."""

    @property
    def section(self) -> str:
        """The part of the key before the dot; empty at the root."""
        return self.key.rpartition(".")[0]

    @property
    def choices(self) -> tuple[str, ...]:
        """Names of the choices; empty if the type has none."""
        return tuple(member.name for member in self.type) if _is_enum(self.type) else ()

    @property
    def expected(self) -> str:
        """The values it takes, in words."""
        one_of = "one of " if len(self.choices) > 1 else ""
        words = f"{one_of}{', '.join(self.choices)}" if self.choices else _TYPE_WORDS[self.type]
        return ", or ".join([words, *([FORM] if self.imports else []), *(["null"] if self.optional else [])])


@cache
def all_settings() -> dict[str, Setting]:
    """Every setting by key, in the order of the schema; not what only the file of an experiment may say."""
    return {setting.key: setting for setting in settings_of(RunConfig, "") if setting.key not in ONLY_IN_FILES}


def sections() -> dict[str, str]:
    """The first sentence of each section of settings."""
    hints = {name: hint for name, hint in typing.get_type_hints(RunConfig).items() if is_dataclass(hint)}
    docs = {name: inspect.cleandoc(hint.__doc__ or "") for name, hint in hints.items()}
    return docs | {union.section: union.doc for union in RUN_UNIONS.values()}


@cache
def group_options() -> dict[str, tuple[str, ...]]:
    """The options of each group in conf/, groups in the order of the schema and then by name.

    Raises:
        SettingsError: if the folder is not there.
    """
    if not (CONF / "config.yaml").is_file():
        raise SettingsError(f"expected the folder conf/ with config.yaml beside harness/, found none at {CONF}")
    order = {name: index for index, name in enumerate(sections())}
    folders = sorted((path for path in CONF.iterdir() if path.is_dir()), key=lambda path: order.get(path.name, 99))
    return {folder.name: tuple(sorted(path.stem for path in folder.glob("*.yaml"))) for folder in folders}


def did_you_mean(given: str, names: Sequence[str]) -> str:
    """` (did you mean X?)` with the name closest to `given`, or nothing if none is close."""
    leaf = given.rpartition(".")[2]
    same_leaf = [name for name in names if name.rpartition(".")[2] == leaf]
    by_leaf = {name.rpartition(".")[2]: name for name in reversed(names)}
    close = same_leaf or get_close_matches(given, names, n=1, cutoff=0.6)
    close = close or [by_leaf[name] for name in get_close_matches(leaf, by_leaf, n=1, cutoff=0.75)]
    return f" (did you mean {close[0]}?)" if close else ""


def settings_of(schema: type, prefix: str) -> Iterator[Setting]:
    """The settings of a dataclass and of the dataclasses in it, in the order of the fields.

    Args:
        schema: the dataclass.
        prefix: put before the names of its own fields, with the dot.
    """
    hints, docs = typing.get_type_hints(schema), _field_docs(schema)
    for item in fields(schema):
        hint, imports, optional = _members(hints[item.name])
        if item.name in RUN_UNIONS:
            yield from _settings_of_union(RUN_UNIONS[item.name])
        elif is_dataclass(hint):
            yield from settings_of(typing.cast(type, hint), f"{item.name}.")
        else:
            yield Setting(prefix + item.name, hint, optional, _default(item), docs.get(item.name, ""), imports)


def _settings_of_union(union: Union) -> Iterator[Setting]:
    """The tag, then every setting that some built-in member has, once."""
    names: Any = Enum(union.tag, {name: name for name in union.names})  # type: ignore[misc]
    yield Setting(union.key, names, False, names[union.default], union.tag_doc, imports=True)
    found: dict[str, Setting] = {}
    for name in union.names:
        for setting in member_settings(union, name).values():
            other = found.setdefault(setting.key, setting)
            assert (other.type, other.optional) == (setting.type, setting.optional), f"two types of {setting.key}"
            found[setting.key] = replace(other, members=(*other.members, name))
    yield from found.values()


@cache
def member_settings(union: Union, name: str) -> dict[str, Setting]:
    """The settings of one member of a union by key, those of a member of the user's own too."""
    return {
        setting.key: replace(setting, type=with_lists(setting.type), default=mutable(setting.default))
        for setting in settings_of(union.kind_of(name), f"{union.section}.")
    }


def _default(item: Field[Any]) -> Any:
    if item.default_factory is not MISSING:
        return item.default_factory()
    return item.default


def _members(hint: Any) -> tuple[Any, bool, bool]:
    """(type of the setting, whether an object may be imported in its place, whether null is a value)"""
    if hint is TextOrTexts:
        return str | list[str], False, True
    if not isinstance(hint, types.UnionType) and typing.get_origin(hint) is not typing.Union:
        return hint, False, False
    members = typing.get_args(hint)
    optional = types.NoneType in members
    given = [member for member in members if member is not types.NoneType]
    ours, imports = given[0], len(given) > 1
    if imports:
        enums = given[:-1]
        assert given[-1] is str and all(map(_is_enum, enums)), f"expected one type, or Enums and a path, found {hint}"
        names = {name: member.value for enum in enums for name, member in enum.__members__.items()}
        ours = ours if len(enums) == 1 else Enum(ours.__name__, names)
    return ours, imports, optional


def _is_enum(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, Enum)


def _field_docs(schema: type) -> dict[str, str]:
    """Docstrings under the fields of a dataclass and of those it derives from."""
    docs: dict[str, str] = {}
    for base in reversed([base for base in schema.__mro__ if is_dataclass(base)]):
        body = _class_bodies(base.__module__).get(base.__name__, [])
        for statement, after in pairwise(body):
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                text = _string_statement(after)
                if text is not None:
                    docs[statement.target.id] = text
    return docs


@cache
def _class_bodies(module_name: str) -> dict[str, list[ast.stmt]]:
    tree = ast.parse(inspect.getsource(sys.modules[module_name]))
    return {node.name: node.body for node in tree.body if isinstance(node, ast.ClassDef)}


def _string_statement(statement: ast.stmt) -> str | None:
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        value = statement.value.value
        return inspect.cleandoc(value) if isinstance(value, str) else None
    return None


def check_setting(holds: bool, name: str, expected: str, found: object) -> None:
    """Raise SettingsError unless a condition holds, with what was expected of the field and what was found."""
    if not holds:
        raise SettingsError(f"--{name.replace('_', '-')}: expected {expected}, found {found}")


def check_known(name: str, values: Iterable[str], known: Iterable[str]) -> None:
    """Raise SettingsError unless every value is one of those that are known."""
    choices = list(known)
    for value in values:
        hint = did_you_mean(value, choices)
        check_setting(value in choices, name, f"some of {', '.join(choices)}", f"{value!r}{hint}")


def check_seed(seed: int) -> None:
    """Raise SettingsError unless a seed leaves room for the seeds that are made from it, which have 64 bits."""
    check_setting(0 <= seed < 2**32, "seed", "0 to 4294967295", seed)
