"""Reads `prefix.setting=value` arguments into a dataclass, for the commands that need no Hydra.

A key is given once and sweeps nothing. The values it may hold are the field's type, and what they mean is said by the
dataclass itself; this module knows neither torch nor any command.
"""

from __future__ import annotations

import typing
from collections.abc import Iterable, Sequence
from decimal import Decimal, InvalidOperation
from enum import Enum
from typing import Any, TypeVar

from harness.settings.schema import SettingsError, did_you_mean, settings_of

MAX_DIGITS = 18
"""Of a whole number, so that it fits into 64 bits."""
Schema = TypeVar("Schema")


def read_plain_settings(schema: type[Schema], prefix: str, arguments: Sequence[str]) -> Schema:
    """The settings that a command line asks for.

    Args:
        schema: a dataclass whose fields are str, bool, int, an Enum, tuple[str, ...] or tuple[float, ...].
        prefix: of its keys, without the dot.
        arguments: `prefix.setting=value`, each key once; Enums by name, tuples as `first,second` or `[first,second]`.

    Raises:
        SettingsError: for anything wrong with them, in one line; what the schema refuses itself goes through.
    """
    settings = {setting.key: setting for setting in settings_of(schema, f"{prefix}.")}
    values: dict[str, Any] = {}
    for argument in arguments:
        key, equals, text = argument.partition("=")
        if not equals:
            raise SettingsError(f"expected {prefix}.setting=value, found {argument!r}")
        if key not in settings:
            hint = did_you_mean(key, list(settings))
            raise SettingsError(f"unknown setting {key!r}{hint}; there are {', '.join(settings)}")
        setting, name = settings[key], key.removeprefix(f"{prefix}.")
        if name in values:
            raise SettingsError(f"{key} is given twice; give it once")
        try:
            values[name] = _value(setting.type, text)
        except ValueError as error:
            hint = did_you_mean(text, setting.choices)
            raise SettingsError(f"{key}: expected {setting.expected}, found {text!r}{hint}") from error
    return schema(**values)


def check_setting(holds: bool, key: str, expected: str, found: object) -> None:
    """Raise SettingsError unless a condition holds, with what was expected of the setting and what was found."""
    if not holds:
        raise SettingsError(f"{key}: expected {expected}, found {found}")


def check_known(key: str, values: Iterable[str], known: Iterable[str]) -> None:
    """Raise SettingsError unless every value is one of those that are known."""
    choices = list(known)
    for value in values:
        hint = did_you_mean(value, choices)
        check_setting(value in choices, key, f"some of {', '.join(choices)}", f"{value!r}{hint}")


def check_seed(key: str, seed: int) -> None:
    """Raise SettingsError unless a seed leaves room for the seeds that are made from it, which have 64 bits."""
    check_setting(0 <= seed < 2**32, key, "0 to 4294967295", seed)


def _value(kind: Any, text: str) -> Any:
    """`text` as the type of a field; raises ValueError if it is not of that type."""
    if kind is str:
        return text
    if kind is bool:
        return _one_of({"true": True, "false": False}, text)
    if kind is int:
        return _whole_number(text)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _one_of(kind.__members__, text)
    assert typing.get_origin(kind) is tuple, f"fields are str, bool, int, an Enum or a tuple, found {kind}"
    return tuple(_item(typing.get_args(kind)[0], part.strip()) for part in _parts(text))


def _one_of(values: typing.Mapping[str, Any], name: str) -> Any:
    if name not in values:
        raise ValueError("not among the choices")
    return values[name]


def _whole_number(text: str) -> int:
    """Also 1_000_000 and 1e6; by way of a decimal number, which rounds neither 1.5e0 nor 1e-3 to a whole one."""
    try:
        number = Decimal(text)
    except InvalidOperation as error:
        raise ValueError("not a number") from error
    # Written out, 1e999999999 would fill the memory.
    if not number.is_finite() or number.adjusted() >= MAX_DIGITS or number != number.to_integral_value():
        raise ValueError("not whole, or too large")
    return int(number)


def _parts(text: str) -> list[str]:
    inner = text.strip()
    if inner.startswith("[") and inner.endswith("]"):
        inner = inner[1:-1].strip()
    return inner.split(",") if inner else []


def _item(kind: Any, text: str) -> Any:
    if not text:
        raise ValueError("nothing between two commas")
    return kind(text)
