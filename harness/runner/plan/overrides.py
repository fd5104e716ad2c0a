"""Reads `setting=value` and `group=option` arguments in Hydra's grammar and checks each against the schema.

A comma between values (also `choice(..)`, `range(..)`, `glob(..)`) asks for a sweep. Whatever is wrong is said here, in
one line, before anything is composed or loaded. The smaller size that the file of an experiment sets where there is no
GPU is read here too; the command line wins. This module does not know what the settings are for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, make_dataclass
from fnmatch import fnmatch
from functools import cache
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override, OverrideType, QuotedString, RangeSweep
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from harness.config.device import asks_for_gpu
from harness.config.imported import FORM, is_import_path, named
from harness.config.run import ONLY_IN_FILES, RUN_UNIONS
from harness.config.schema import Setting, SettingsError, all_settings, did_you_mean, group_options, member_settings
from harness.runner.plan.typed_sections import root_schema

ONE_FOR_THE_RUN = (
    "experiment",
    "name",
    "title",
    "shows",
    "does_not_show",
    "reference",
    "invalid_cells",
    "output",
    "launcher",
    "measurement",
)
"""Groups, sections and settings that belong to the whole run and cannot be swept."""

_SYMBOLS = {"K": "drafting.num_speculative_tokens"}
"""Letters that the field uses, and the settings they mean."""


@dataclass(frozen=True)
class Given:
    """What was asked for one setting or group."""

    key: str
    values: tuple[Any, ...]
    """One plain value, or those of a sweep in order; names of options for a group."""
    is_group: bool
    is_sweep: bool


def read_overrides(arguments: Sequence[str]) -> dict[str, Given]:
    """Parse and check command-line overrides.

    Args:
        arguments: `setting=value`, `setting=value,value`, `group=option` or `group=option,option`.

    Returns:
        What was given, by key.

    Raises:
        SettingsError: for a wrong name, option, value or type, or a key that is given twice.
    """
    given: dict[str, Given] = {}
    parsed = [_parse(argument) for argument in arguments]
    own = settings_of_own((key, values) for key, values, _ in parsed)
    for argument in parsed:
        item = check_given(*argument, own)
        if item.key in given:
            raise SettingsError(f"{item.key} is given twice; give it once, a sweep as {item.key}=first,second")
        given[item.key] = item
    return given


def settings_of_own(given: Iterable[tuple[str, Sequence[Any]]]) -> dict[str, Setting]:
    """The settings of the objects of the user's own that are chosen as members of unions, by key.

    Raises:
        SettingsError: one of them cannot be imported, or is no such member.
    """
    found: dict[str, Setting] = {}
    every = list(given)
    for union in RUN_UNIONS.values():
        chosen = [str(value) for key, values in every for value in values if key in (union.section, union.key)]
        for name in filter(is_import_path, dict.fromkeys(chosen)):
            try:
                union.check(name)
                found |= member_settings(union, name)
            except ValueError as error:
                raise SettingsError(str(error)) from error
    return found


def check_given(key: str, values: Sequence[Any], is_sweep: bool, own: Mapping[str, Setting]) -> Given:
    """Check one key and its values against the groups and the schema.

    The setting that names the member of a union is its group: `verification.method=fly` is `verification=fly`.

    Args:
        key: as given.
        values: one, or those of a sweep.
        is_sweep: whether they are a sweep.
        own: of `settings_of_own`.

    Raises:
        SettingsError: if the key is unknown, a value is not valid for it, or it cannot be swept.
    """
    groups, settings = group_options(), {**all_settings(), **own}
    if key not in groups and key not in settings:
        raise SettingsError(_unknown(key, settings))
    if is_sweep and key.partition(".")[0] in ONE_FOR_THE_RUN:
        raise SettingsError(f"{key} is one for the whole run, found {len(values)} values: {_listed(values)}")
    if not values:
        raise SettingsError(f"{key}: expected at least one value, found none")
    if key in groups:
        return Given(key, tuple(_option(key, value) for value in values), True, is_sweep)
    valid = tuple(_valid(settings[key], value) for value in values)
    of_tag = [union.section for union in RUN_UNIONS.values() if key == union.key]
    return Given(of_tag[0], valid, True, is_sweep) if of_tag else Given(key, valid, False, is_sweep)


def _parse(argument: str) -> tuple[str, list[Any], bool]:
    """(key, values, whether they are a sweep) of one argument."""
    key, equals, value = argument.partition("=")
    if not equals:
        raise SettingsError(f"expected setting=value or group=option, found {argument!r}{_hint_for(argument)}")
    mark = _mark(argument)
    try:
        override = OverridesParser.create().parse_override(_in_ascii(argument, mark))
    except HydraException as error:
        hint = f"""put quotes around a value with special characters: '{key}="{value}"'"""
        if value.count("[") > value.count("]"):
            hint = f"close the bracket: '{key}={value}]'"
        if value.endswith(","):
            hint = f"write no space after the comma: {key}=first,second"
        raise SettingsError(f"cannot read {argument!r} ({_restored(_first_line(error), mark)}); {hint}") from error
    if override.type is not OverrideType.CHANGE or override.package is not None:
        raise SettingsError(f"{argument!r}: every setting exists already; write {key.lstrip('+~')}=value")
    values = [_restored(value, mark) for value in _values(override, mark)]
    return _restored(override.key_or_group, mark), values, override.is_sweep_override()


def _mark(text: str) -> str:
    """Letters that the text does not have in a row."""
    longest = max(map(len, re.findall("z+", text)), default=0)
    return "z" * (longest + 1)


def _in_ascii(text: str, mark: str) -> str:
    """The text with a word in the place of each character that is not ASCII: Hydra's grammar knows no such letters."""
    return "".join(each if each.isascii() else f"{mark}{ord(each):x}{mark}" for each in text)


def _restored(value: Any, mark: str) -> Any:
    """A value, a list of them, or an object, with the characters that `_in_ascii` replaced."""
    if isinstance(value, str):
        return re.sub(f"{mark}([0-9a-f]+){mark}", lambda found: chr(int(found[1], 16)), value)
    if isinstance(value, list):
        return [_restored(item, mark) for item in value]
    if isinstance(value, dict):
        return {_restored(name, mark): _restored(item, mark) for name, item in value.items()}
    return value


def _hint_for(argument: str) -> str:
    groups = [group for group, options in group_options().items() if argument in options]
    return f" (did you mean {groups[0]}={argument}?)" if groups else ""


def _values(override: Override, mark: str) -> list[Any]:
    if not override.is_sweep_override():
        return [_plain(override.value())]
    value = override.value()
    if isinstance(value, Glob):
        options = group_options().get(override.key_or_group, ())
        return [name for name in options if any(fnmatch(name, _restored(each, mark)) for each in value.include)]
    if not override.is_discrete_sweep():
        raise SettingsError(f"{override.input_line!r}: an interval has no list of values; use a,b or range(a,b)")
    values = [_plain(item) for item in override.sweep_iterator()]
    return [round(item, 12) for item in values] if isinstance(value, RangeSweep) else values


def _plain(value: Any) -> Any:
    if isinstance(value, QuotedString):
        return value.text
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value


def _unknown(key: str, settings: Iterable[str]) -> str:
    if key.partition(".")[0] in ONLY_IN_FILES:
        words = "on the command line write the setting itself, as drafting.num_speculative_tokens=1,3"
        return f"{key} is for experiment files; {words}"
    section = key.partition(".")[0]
    keys = list(settings)
    known = [name for name in keys if name.startswith(f"{section}.")]
    groups = list(group_options())
    if known and section != key:
        listed = f"{section} has {', '.join(name.partition('.')[2] for name in known)}"
    else:
        roots = dict.fromkeys([*groups, *(name if "." not in name else name.partition(".")[0] for name in keys)])
        listed = f"there are {', '.join(roots)} (--help lists all)"
    return f"unknown setting {key!r}{did_you_mean(_SYMBOLS.get(key, key), [*groups, *keys])}; {listed}"


def _option(group: str, value: Any) -> str:
    options = group_options()[group]
    if value is None and group == "experiment":
        return "null"
    name = str(value)
    if name not in options and not (group in RUN_UNIONS and is_import_path(name)):
        or_own = f", or {FORM}" if group in RUN_UNIONS else ""
        raise SettingsError(
            f"{group}={name}: no such option{did_you_mean(name, options)}; choices: {', '.join(options)}{or_own}"
        )
    return name


@cache
def _typed_settings() -> DictConfig:
    """Settings that refuse values of wrong types; which values they hold decides nothing."""
    return OmegaConf.structured(root_schema())


def _valid(setting: Setting, value: Any) -> Any:
    key = setting.key
    if setting.type is str and isinstance(value, list):
        # text that looks like a list, such as the parents of a tree
        value = json.dumps(value, separators=(",", ":"))
    if setting.type == list[list[float]] and isinstance(value, list):
        # in lists of lists OmegaConf takes no whole number for a number
        value = [[_number(item) for item in row] if isinstance(row, list) else row for row in value]
    if setting.type == str | list[str]:
        items = value if isinstance(value, list) else [value]
        if any(isinstance(item, list | dict) for item in items):
            raise _invalid(setting, value)
        # a name that is written as a number stays text
        value = value if value is None else [str(item) for item in items] if isinstance(value, list) else str(value)
    try:
        if setting.section in RUN_UNIONS:
            _check_of_member(setting, value)
        else:
            OmegaConf.update(_typed_settings(), key, value)
    except OmegaConfBaseException as error:
        raise _invalid(setting, value) from error
    if setting.imports and not (value is None and setting.optional):
        try:
            named(key, setting.type.__members__, str(value))
        except ValueError as error:
            raise _invalid(setting, value) from error
    return value


def _check_of_member(setting: Setting, value: Any) -> None:
    """OmegaConf raises where a value has not the type of a member's setting; names of members are left to others."""
    kind = setting.type if not setting.imports else Any
    hint = kind | None if setting.optional else kind
    typed = make_dataclass("Typed", [("value", hint, field(default_factory=lambda: setting.default))])
    OmegaConf.structured(typed).value = value


def _number(value: Any) -> Any:
    return float(value) if type(value) is int else value


def _invalid(setting: Setting, value: Any) -> SettingsError:
    hint = did_you_mean(str(value), setting.choices)
    return SettingsError(f"{setting.key}: expected {setting.expected}, found {_shown(value)}{hint}")


def _shown(value: Any) -> str:
    return json.dumps(value) if value is None or isinstance(value, bool | list | dict) else str(value)


def _listed(values: Sequence[Any]) -> str:
    return ", ".join(_shown(value) for value in values)


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0].partition(" expecting ")[0] if str(error) else type(error).__name__


def smaller_values(
    root: DictConfig, given: Mapping[str, Given], of_experiment: Mapping[str, Given]
) -> dict[str, Given]:
    """What the block `without_gpu` sets in this run, by key; nothing where there is a GPU.

    Args:
        root: the composed settings.
        given: the command line, which wins.
        of_experiment: the experiment's sweep, whose settings take lists in the block.

    Raises:
        SettingsError: for an unknown key or a wrong value in the block.
    """
    block: Any = OmegaConf.to_container(root.without_gpu)
    if not block or asks_for_gpu(root.backend.device):
        return {}
    own = settings_of_own((item.key, item.values) for item in (*given.values(), *of_experiment.values()))
    found = [
        check_given(key, values if key in of_experiment else [values], key in of_experiment, own)
        for key, values in block.items()
    ]
    return {item.key: item for item in found if item.key not in given}


def size_warning(root: DictConfig, smaller: Mapping[str, Given], of_experiment: Mapping[str, Given]) -> str:
    """What was made smaller, with the values that the settings composed before had."""
    changes = []
    for key, item in smaller.items():
        before = of_experiment[key].values if key in of_experiment else (OmegaConf.select(root, key),)
        # of a group only the options have names
        changes.append(f"{key}={_text(item.values)}" + ("" if item.is_group else f" instead of {_text(before)}"))
    return f"reduced size, because there is no GPU: {', '.join(changes)}"


def _text(values: tuple[Any, ...]) -> str:
    return ",".join("null" if value is None else f"{value}" for value in values)
