"""The fields of a dataclass as flags, for the commands that need no Hydra: `--draft-tokens 4` for `draft_tokens`.

Fields are str, bool, int, float, an Enum, tuple[str, ...] or tuple[float, ...]; the help is the docstring under each.
This module knows neither torch nor any command.
"""

from __future__ import annotations

import argparse
import json
import re
import typing
from argparse import SUPPRESS, ArgumentTypeError, BooleanOptionalAction
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from decimal import Decimal, InvalidOperation
from enum import Enum
from functools import partial
from typing import Any, TypeVar

from harness.config.schema import Setting, did_you_mean, settings_of

Schema = TypeVar("Schema")


def add_settings(parser: argparse.ArgumentParser, schema: type) -> None:
    """Add one flag for each field of a dataclass; a truth value has two, `--law` and `--no-law`."""
    for setting in settings_of(schema, ""):
        text = f"{setting.doc} (default: {shown(setting.default)})" if shown(setting.default) else setting.doc
        given: dict[str, Any] = {"default": SUPPRESS, "help": text.replace("%", "%%")}
        if setting.type is bool:
            given["action"] = BooleanOptionalAction
        else:
            metavar = f"{{{','.join(setting.choices)}}}" if setting.choices else _METAVARS[setting.type]
            given |= {"type": partial(_value, setting), "metavar": metavar}
        parser.add_argument(flag_of(setting.key), **given)


def read_settings(schema: type[Schema], options: argparse.Namespace) -> Schema:
    """The dataclass with what was given; raises what the dataclass raises for values that cannot be."""
    return schema(**{item.name: getattr(options, item.name) for item in fields(typing.cast(Any, schema))
                     if item.name in options})  # fmt: skip


def flag_of(name: str) -> str:
    """The flag of a field."""
    return f"--{name.replace('_', '-')}"


def flags_of(schema: type, prefix: str, arguments: Sequence[str], tell: Callable[[str], None]) -> Iterator[str]:
    """The arguments with those of the deprecated form `prefix.setting=value` as flags; `tell` gets a line on each."""
    truths = [setting.key for setting in settings_of(schema, "") if setting.type is bool]
    for argument in arguments:
        old = re.fullmatch(rf"{prefix}\.(\w+)=(.*)", argument, re.DOTALL)
        if old is None:
            yield argument
            continue
        name, value = old.groups()
        flag = f"{flag_of(name)}={value}"
        if name in truths and value in ("true", "false"):
            flag = flag_of(name if value == "true" else f"no_{name}")
        tell(f"note: {argument} is deprecated; write {flag}")
        yield flag


def whole_number(text: str, least: int | None = None) -> int:
    """A whole number such as 4, 1_000 or 1e6, exactly, as a type for argparse; 1.5 is none."""
    try:
        number = Decimal(text)
    except InvalidOperation:
        number = Decimal("nan")
    fits = number.is_finite() and -(2**63) < number < 2**63 and number == int(number)
    if not fits or (least is not None and number < least):
        words = "a whole number" if least is None else f"a whole number, {least} or more"
        raise ArgumentTypeError(f"expected {words}, found {text!r}")
    return int(number)


def device_names(text: str) -> tuple[str, ...]:
    """GPUs such as 0,1 or GPU-1a2b, as CUDA_VISIBLE_DEVICES names them, each once; as a type for argparse."""
    names = [name.strip() for name in text.split(",")]
    if not all(re.fullmatch(r"[0-9]+|(GPU|MIG)-[0-9A-Za-z/-]+", name) for name in names):
        raise ArgumentTypeError(
            f"expected numbers or UUIDs of GPUs with commas between them, such as 0,1 or GPU-1a2b, found {text!r}"
        )
    devices = [str(int(name)) if name.isdigit() else name for name in names]
    repeated = [name for name in dict.fromkeys(devices) if devices.count(name) > 1]
    if repeated:
        raise ArgumentTypeError(f"expected each device once, found {repeated[0]} more than once in {text!r}")
    return tuple(devices)


_METAVARS = {str: "TEXT", int: "N", float: "X", tuple[str, ...]: "A,B", tuple[float, ...]: "X,Y"}


def _value(setting: Setting, text: str) -> Any:
    """`text` as the type of a field."""
    if setting.type is str:
        return text
    if setting.type is int:
        return whole_number(text)
    try:
        if setting.choices:
            return setting.type[text]
        if setting.type is float:
            return float(text)
        kind, inner = typing.get_args(setting.type)[0], text.strip().removeprefix("[").removesuffix("]")
        return tuple(_item(kind, part.strip()) for part in inner.split(",")) if inner else ()
    except (KeyError, ValueError) as error:
        hint = did_you_mean(text, setting.choices)
        raise ArgumentTypeError(f"expected {setting.expected}, found {text!r}{hint}") from error


def _item(kind: Any, text: str) -> Any:
    if not text:
        raise ValueError("nothing between two commas")
    return kind(text)


def shown(value: Any) -> str:
    """A default as a command line gives it."""
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, tuple):
        return ",".join(map(shown, value))
    return value if isinstance(value, str) else json.dumps(value)
