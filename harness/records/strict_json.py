"""JSON that means one thing only, and its values as the types that a dataclass asks for; every error says where.

Python's reader takes NaN, reads 1e999 as infinity, keeps the last of two equal names and gives up on deep nesting with
an error of its own. This module knows no record and no file.
"""

from __future__ import annotations

import json
import re
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, NoReturn

LARGEST_FLOAT = sys.float_info.max
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
"""Half of a character as JSON escapes it; text with one half alone cannot be written again."""
_SHOWN = 60
"""Characters of a wrong value that a message shows."""
_WORDS = {int: "a whole number of 64 bits", float: "a finite number", str: "text", bool: "true or false"}


def parse_json(text: bytes | str) -> Any:
    """The value of a JSON text.

    Args:
        text: bytes are UTF-8, with or without a byte order mark.

    Raises:
        ValueError: it is not JSON, holds NaN, Infinity or a number that float64 does not hold, names something twice in
            one object, or is nested too deeply to be read.
    """
    try:
        text = text if isinstance(text, str) else text.decode("utf-8-sig")
        value = json.loads(text, object_pairs_hook=_each_once, parse_constant=_refuse_constant, parse_float=_finite)
        if _SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except UnicodeError as error:
        raise ValueError(f"expected JSON in UTF-8, found {error}") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"expected JSON, found {error}") from error
    except RecursionError as error:
        raise ValueError("expected JSON of a few levels, found one that is nested too deeply to be read") from error


def typed(hint: Any, value: Any) -> Any:
    """A value of JSON as a type; what is of that type already stays as it is.

    Args:
        hint: int, float, str, bool, an Enum, a dataclass, a Mapping from str, a tuple, a list, a union or Any.
        value: objects become dataclasses, lists tuples, text members of an Enum.

    Raises:
        ValueError: it is none; the message names the place within the value, what was expected and what was found.
    """
    origin = typing.get_origin(hint)
    if hint is Any or (is_dataclass(hint) and isinstance(value, typing.cast(type, hint))):
        return value
    if isinstance(hint, types.UnionType) or origin is typing.Union:
        return _member(typing.get_args(hint), value)
    if origin in (tuple, list):
        return _items(typing.get_args(hint) if origin is tuple else (*typing.get_args(hint), ...), value)
    if origin is not None:
        return {name: at(name, typed, typing.get_args(hint)[1], item) for name, item in _object(value).items()}
    if is_dataclass(hint):
        return _built(hint, _object(value))
    return _single(hint, value)


def typed_list(hint: Any, value: Any) -> tuple[Any, ...]:
    """A list of JSON as a tuple of values of one type; see `typed`."""
    return _items((hint, ...), value)


def at(place: str, read: Callable[..., Any], *arguments: Any) -> Any:
    """What `read` returns; a ValueError of it begins with the place."""
    try:
        return read(*arguments)
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from error


def shown(value: Any) -> str:
    """A value in a message, cut where it is long."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


@cache
def hints_of(schema: type) -> Mapping[str, Any]:
    """The types of the fields of a class, by name."""
    return typing.get_type_hints(schema)


def _built(schema: Any, entries: Mapping[str, Any]) -> Any:
    hints, known = hints_of(schema), fields(schema)
    needed = [item.name for item in known if item.default is MISSING and item.default_factory is MISSING]
    missing = [name for name in needed if name not in entries]
    unknown = [name for name in entries if name not in {item.name for item in known}]
    if missing or unknown:
        names = ", ".join(item.name for item in known)
        _fail(f"expected {names}, found {f'no {missing[0]}' if missing else f'also {shown(unknown[0])}'}")
    return schema(**{name: at(name, typed, hints[name], item) for name, item in entries.items()})


def _single(hint: type, value: Any) -> Any:
    """A value as a member of an Enum, or as int, float, str or bool."""
    if issubclass(hint, Enum):
        choices = [member.value for member in hint]
        return hint(value) if value in choices else _wrong(f"one of {', '.join(map(str, choices))}", value)
    return value if _are_plain(hint, (value,)) else _wrong(_WORDS[hint], value)


def _member(hints: tuple[Any, ...], value: Any) -> Any:
    """A value as one of several types."""
    if value is None and types.NoneType in hints:
        return None
    others = [hint for hint in hints if hint is not types.NoneType]
    for hint in others[:-1]:
        try:
            return typed(hint, value)
        except ValueError:
            continue
    return typed(others[-1], value)


def _items(hints: tuple[Any, ...], value: Any) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        _wrong("a list", value)
    if hints[-1] is Ellipsis:
        return _alike(hints[0], value)
    if len(value) != len(hints):
        _wrong(f"{len(hints)} values", value)
    if len(set(hints)) == 1:
        return _alike(hints[0], value)
    return tuple(at(f"[{index}]", typed, *pair) for index, pair in enumerate(zip(hints, value, strict=True)))


def _alike(hint: Any, values: Sequence[Any]) -> tuple[Any, ...]:
    """Values of one type; quick for the columns of a record."""
    inner, present = hint, values
    if isinstance(hint, types.UnionType) and len(hint.__args__) == 2 and types.NoneType in hint.__args__:
        inner = next(each for each in hint.__args__ if each is not types.NoneType)
        present = [item for item in values if item is not None]
    if _are_plain(inner, present):
        return tuple(values)
    found: list[Any] = []
    try:
        for item in values:
            found.append(item if item is None and inner is not hint else typed(inner, item))
    except ValueError as error:
        raise ValueError(f"[{len(found)}]: {error}") from error
    return tuple(found)


def _are_plain(hint: Any, values: Sequence[Any]) -> bool:
    """Whether values are of the type already, numbers in its range."""
    kinds = set(map(type, values))
    if hint is int:
        return kinds <= {int} and min(values, default=0) >= -(2**63) and max(values, default=0) < 2**63
    if hint is float:
        return kinds <= {int, float} and max(map(abs, values), default=0) <= LARGEST_FLOAT
    return kinds <= {hint}


def _object(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        _wrong("an object", value)
    return typing.cast(Mapping[str, Any], value)


def _wrong(expected: str, found: Any) -> NoReturn:
    _fail(f"expected {expected}, found {shown(found)}")


def _fail(message: str) -> NoReturn:
    raise ValueError(message)


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        _fail(f"expected each name once in an object, found {shown(twice)} again")
    return found


def _refuse_constant(name: str) -> NoReturn:
    _fail(f"expected JSON, which has finite numbers only, found {name}")


def _finite(text: str) -> float:
    number = float(text)
    if abs(number) > LARGEST_FLOAT:
        _fail(f"expected a number that float64 holds, found {text[:_SHOWN]}")
    return number
