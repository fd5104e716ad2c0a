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
from functools import cache, partial
from itertools import chain
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
        value = json.loads(text, **_HOOKS)
        if _SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except UnicodeError as error:
        raise ValueError(f"expected JSON in UTF-8, found {error}") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"expected JSON, found {error}") from error
    except RecursionError as error:
        raise ValueError("expected JSON of a few levels, found one that is nested too deeply to be read") from error


def parse_each(content: bytes, name: str, read: Callable[[Any], Any]) -> dict[str, Any] | None:
    """Parse an object whose last entry is a list, value by value, so that the list is never in memory as a whole.

    Args:
        content: JSON, with the blanks that `json.dumps` writes.
        name: of the list.
        read: converts a value; it may change the value.

    Returns:
        The object, with a tuple of converted values under the name. None if the text is no such object or anything is
        wrong with it; `parse_json` then says what.
    """
    found, end = list[Any](), 0
    try:
        text = content.decode()
        before, begin, values = text.partition(f'"{name}": [')
        if not begin or _SURROGATE.search(text):
            return None
        outside = parse_json(f"{before}{begin}]}}")
        decoder = _DECODER if _may_overflow(content) else _DECODER_OF_FINITE
        while end or not values.startswith("]"):
            item, end = decoder.raw_decode(values, end)
            found.append(read(item))
            if not values.startswith(", ", end):
                break
            end += len(", ")
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    is_whole = values[end:] == "]}" and isinstance(outside, dict) and outside.get(name) == []
    return outside | {name: tuple(found)} if is_whole else None


def typed(hint: Any, value: Any) -> Any:
    """A value of JSON as a type; what is of that type already stays as it is.

    Args:
        hint: int, float, str, bool, an Enum, a dataclass, a Mapping from str, a tuple, a list, a union or Any.
        value: objects become dataclasses, lists tuples, text members of an Enum.

    Raises:
        ValueError: it is none; the message names the place within the value, what was expected and what was found.
    """
    return _reader(hint)(value)


@cache
def _reader(hint: Any) -> Callable[[Any], Any]:
    """The function that converts a value of JSON to a type."""
    origin, members = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return _as_it_is
    if isinstance(hint, types.UnionType) or origin is typing.Union:
        return partial(_member, members)
    if origin in (tuple, list):
        return partial(_items, members if origin is tuple else (*members, ...))
    if origin is not None:
        return partial(_mapping, members[1])
    return partial(_built if is_dataclass(hint) else _single, hint)


def _as_it_is(value: Any) -> Any:
    return value


def _mapping(hint: Any, value: Any) -> dict[str, Any]:
    return {name: at(name, typed, hint, item) for name, item in _object(value).items()}


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


@cache
def _needed(schema: Any) -> frozenset[str]:
    """Fields without a default."""
    return frozenset(
        item.name for item in fields(schema) if item.default is MISSING and item.default_factory is MISSING
    )


def _built(schema: Any, value: Any) -> Any:
    if isinstance(value, schema):
        return value
    entries, hints = _object(value), hints_of(schema)
    if not entries.keys() <= hints.keys() or not _needed(schema) <= entries.keys():
        missing = [name for name in hints if name in _needed(schema) and name not in entries]
        unknown = [name for name in entries if name not in hints]
        names = ", ".join(hints)
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
    if _are_plain_rows(inner, present):
        return tuple(None if item is None else tuple(item) for item in values)
    found: list[Any] = []
    try:
        for item in values:
            found.append(item if item is None and inner is not hint else typed(inner, item))
    except ValueError as error:
        raise ValueError(f"[{len(found)}]: {error}") from error
    return tuple(found)


def _are_plain_rows(hint: Any, values: Sequence[Any]) -> bool:
    """Whether values are lists of numbers that fit a tuple's type as they are."""
    members = typing.get_args(hint) if typing.get_origin(hint) is tuple else ()
    if not members or members[0] not in (int, float) or not set(map(type, values)) <= {list, tuple}:
        return False
    is_long = members[1:] == (...,)
    if not is_long and (len(set(members)) > 1 or not set(map(len, values)) <= {len(members)}):
        return False
    return _are_plain(members[0], list(chain.from_iterable(values)))


def _are_plain(hint: Any, values: Sequence[Any]) -> bool:
    """Whether values are of the type already, numbers in its range."""
    kinds = set(map(type, values))
    if hint is int:
        return kinds <= {int} and min(values, default=0) >= -(2**63) and max(values, default=0) < 2**63
    if hint is float:
        return (
            kinds <= {int, float}
            and -LARGEST_FLOAT <= min(values, default=0) <= max(values, default=0) <= LARGEST_FLOAT
        )
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
    if -LARGEST_FLOAT <= number <= LARGEST_FLOAT:
        return number
    _fail(f"expected a number that float64 holds, found {text[:_SHOWN]}")


_HOOKS: Mapping[str, Any] = {
    "object_pairs_hook": _each_once,
    "parse_constant": _refuse_constant,
    "parse_float": _finite,
}
_DECODER = json.JSONDecoder(**_HOOKS)
_DECODER_OF_FINITE = json.JSONDecoder(**{**_HOOKS, "parse_float": None})
_FORM = bytes.maketrans(b"123456789E", b"000000000e")
_LARGE_EXPONENT = re.compile(rb"e\+?000")
_LARGE_NUMBER = re.compile(rb"[\s\[,:-]0[.0]*e\+?000")
"""An exponent is found sooner; digests of weights, which are text, have an e before digits too."""


def _may_overflow(content: bytes) -> bool:
    """Whether a number may be beyond float64; none is with fewer than 200 digits and an exponent below 100."""
    form = content.translate(_FORM)
    return b"0" * 200 in form or bool(_LARGE_EXPONENT.search(form) and _LARGE_NUMBER.search(form))
