"""JSON that means one thing only, and its values as the types that a dataclass asks for; every error says where.

msgspec reads and converts. It keeps the last of two equal names and passes over a field that a dataclass does not have;
both are refused here. This module knows no record and no file.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from enum import Enum, EnumType
from types import NoneType, UnionType
from typing import Annotated, Any, NoReturn, get_args, get_type_hints

import msgspec

Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""A whole number that NumPy and a table hold."""
_SHOWN = 60
"""Characters of a wrong value that a message shows."""
_WORDS = {
    "int": "a whole number of 64 bits",
    "float": "a finite number",
    "str": "text",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
}
_KINDS = {int: "int", float: "float", str: "str", bool: "bool", NoneType: "null", list: "array", dict: "object"}
"""Types of JSON by msgspec's names."""
_COLON = b"\\u003"
"""How the escape of a colon begins."""
_SAID = re.compile(r"(.*?)(?: - at `\$(.*)`)?", re.DOTALL)
"""What msgspec says, and where."""
_STEP = re.compile(r"\.(\w+)|\[(\d+|\.\.\.)\]")
"""A field, an index, or some name of a mapping."""


def parse_json(text: bytes | str) -> Any:
    """The value of a JSON text.

    Args:
        text: bytes are UTF-8, with or without a byte order mark.

    Raises:
        ValueError: it is not JSON, holds NaN, Infinity or a number that float64 does not hold, names something twice in
            one object, or is nested too deeply to be read.
    """
    try:
        content = text.encode() if isinstance(text, str) else text.removeprefix(codecs.BOM_UTF8)
        try:
            value = msgspec.json.decode(content)
        except msgspec.MsgspecError as error:
            # Python's reader names the line and the column
            json.loads(content.decode(), parse_constant=_refuse_constant)
            raise ValueError(f"expected JSON in UTF-8 with numbers that float64 holds, found {error}") from error
        # an entry that was dropped has taken its colon along, unless one in a text is escaped
        if content.count(b":") != msgspec.json.encode(value).count(b":") or _COLON in content:
            json.loads(content.decode(), object_pairs_hook=_each_once)
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
        hint: what msgspec converts to: Int64, float, str, bool, an Enum, a dataclass, a Mapping, a tuple, a union, ..
        value: objects become dataclasses, lists tuples, text members of an Enum.

    Raises:
        ValueError: it is none; the message names the place within the value, what was expected and what was found.
    """
    try:
        found = msgspec.convert(value, hint)
    except msgspec.ValidationError as error:
        raise ValueError(_explained(error, hint, value)) from error
    _refuse_unknown(found, value, "")
    return found


def at(place: str, read: Callable[..., Any], *arguments: Any) -> Any:
    """What `read` returns; a ValueError of it begins with the place."""
    try:
        return read(*arguments)
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from error


def at_each(place: str, read: Callable[[Any], Any], value: Any) -> list[Any]:
    """What `read` returns for each item of a list of JSON; see `at`."""
    items = at(place, typed, list[Any], value)
    return [at(f"{place}[{index}]", read, item) for index, item in enumerate(items)]


def shown(value: Any) -> str:
    """A value in a message, cut where it is long."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _explained(error: msgspec.ValidationError, hint: Any, value: Any) -> str:
    """A message of msgspec with the value that it is about, and the choices where there are some."""
    match = _SAID.fullmatch(str(error))
    assert match is not None
    said, path = match[1], match[2] or ""
    place, hint, found = _followed(said, path, hint, value)
    expected = re.match(r"Expected `(.+?)`(?: of length (\d+))?", said)
    missing = re.fullmatch("Object missing required field `(.+)`", said)
    if isinstance(hint, EnumType):
        choices: list[Enum] = list(hint)
        text = f"expected one of {', '.join(str(each.value) for each in choices)}, found {shown(found)}"
    elif expected is not None:
        kinds = " or ".join(_WORDS.get(each, each) for each in expected[1].split(" | "))
        text = f"expected {f'{expected[2]} values' if expected[2] else kinds}, found {shown(found)}"
    elif missing is not None:
        text = f"expected {missing[1]}, found none"
    elif said == "Number out of range":
        text = f"expected {_WORDS['float']}, found {shown(found)}"
    else:
        text = said
    return f"{place}: {text}" if place else text


def _followed(said: str, path: str, hint: Any, value: Any) -> tuple[str, Any, Any]:
    """A place within a value in words, its type and what stands there."""
    place, got = "", re.search(r"got `(\w+)`", said)
    for name, index in _STEP.findall(path):
        hint = _without_none(hint)
        if index == "...":
            # the first name of a mapping whose value has the wrong type
            wrong = [key for key, item in value.items() if got is not None and _KINDS.get(type(item)) == got[1]]
            if not wrong:
                return f"{place}[...]".lstrip("."), Any, value
            step, hint, value = f".{wrong[0]}", get_args(hint)[1], value[wrong[0]]
        elif index:
            step, hint, value = f"[{index}]", get_args(hint)[0], value[int(index)]
        else:
            step, hint, value = f".{name}", get_type_hints(hint)[name], value[name]
        place += step
    return place.lstrip("."), _without_none(hint), value


def _without_none(hint: Any) -> Any:
    """The type itself of one that may be missing."""
    members = [each for each in get_args(hint) if each is not NoneType]
    return members[0] if isinstance(hint, UnionType) and len(members) == 1 else hint


def _refuse_unknown(found: Any, value: Any, place: str) -> None:
    """Refuse a name that no field of a dataclass has.

    Args:
        found: what the value was converted to.
        place: of the value.
    """
    if is_dataclass(found) and isinstance(value, dict):
        names = {item.name: None for item in fields(found)}
        unknown = [name for name in value if name not in names]
        if unknown:
            _fail(f"{f'{place}: ' if place else ''}expected {', '.join(names)}, found also {shown(unknown[0])}")
        for name, item in value.items():
            _refuse_unknown(getattr(found, name), item, f"{place}.{name}" if place else name)
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for index, (item, plain) in enumerate(zip(found, value, strict=True)):
            _refuse_unknown(item, plain, f"{place}[{index}]")


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        _fail(f"expected each name once in an object, found {shown(twice)} again")
    return found


def _refuse_constant(name: str) -> NoReturn:
    _fail(f"expected JSON, which has finite numbers only, found {name}")


def _fail(message: str) -> NoReturn:
    raise ValueError(message)
