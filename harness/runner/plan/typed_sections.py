"""Settings that refuse wrong keys and types while Hydra and OmegaConf merge them: schemas made of our dataclasses.

OmegaConf takes neither frozen dataclasses nor tuples, and no union of dataclasses. A schema is a mutable twin of a
dataclass; a section that is a union is merged as it stands and gets the schema of its member then.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import MISSING, Field, field, fields, make_dataclass
from functools import cache
from typing import Any

from omegaconf import DictConfig, OmegaConf

from harness.config.run import RUN_UNIONS, RunConfig
from harness.config.schema import SettingsError, did_you_mean
from harness.config.union import Union, immutable, mutable, with_lists


def root_schema(kind: type = RunConfig) -> type:
    """The schema of all settings, or those of a cell alone; it takes anything for the sections that are unions."""
    return _twin(kind, tuple(RUN_UNIONS))


def member_section(union: Union, values: Mapping[str, Any]) -> DictConfig:
    """The section of the member that its tag names, with the member's defaults where there is no value.

    Args:
        union: the section.
        values: of files, which may be for several members: what this one lacks and another has is left out.

    Raises:
        SettingsError: there is no such member, or no member has one of the values.
    """
    name = str(values.get(union.tag, union.default))
    try:
        union.check(name)
        defaults = dict(union.parts(union.build(name, {}))[1])
    except ValueError as error:
        raise SettingsError(str(error)) from error
    ours, node = union.field_names(name), typed_member(union, name)
    for key, value in defaults.items():
        OmegaConf.update(node, key, mutable(value))
    for key, value in values.items():
        if key in ours:
            OmegaConf.update(node, key, value)
        elif key != union.tag and not union.members_with(key):
            known = sorted({each for member in union.names for each in union.field_names(member)} | {*ours})
            raise SettingsError(
                f"{union.section}: expected settings of it, found {key}{did_you_mean(key, known)}; there are "
                f"{', '.join((union.tag, *known))}"
            )
    return node


def typed_member(union: Union, name: str) -> DictConfig:
    """An empty section of a member, which refuses wrong keys and types."""
    twin = _twin(union.kind_of(name))
    return OmegaConf.structured(make_dataclass(twin.__name__, [(union.tag, str, name)], bases=(twin,)))


def typed_section(name: str, node: Any) -> Any:
    """A section, or a setting at the root, as a cell holds it; ValueError where one of the values is out of range."""
    if name in RUN_UNIONS:
        return RUN_UNIONS[name].build(*_read(RUN_UNIONS[name], node))
    return OmegaConf.to_object(node) if isinstance(node, DictConfig) else node


def recorded_member(union: Union, values: Mapping[str, Any]) -> Any:
    """The same from what a record holds; OmegaConf raises where it is not what the member has."""
    name = str(values[union.tag])
    union.check(name)
    section = OmegaConf.merge(typed_member(union, name), OmegaConf.create(dict(values)))
    assert isinstance(section, DictConfig)
    return union.of_record(*_read(union, section))


def _read(union: Union, section: DictConfig) -> tuple[str, dict[str, Any]]:
    found: Any = OmegaConf.to_container(section, resolve=True, enum_to_str=False)
    name = found.pop(union.tag)
    return name, {key: immutable(value) for key, value in found.items()}


@cache
def _twin(kind: type, untyped: tuple[str, ...] = ()) -> type:
    hints = typing.get_type_hints(kind)
    items = [
        (item.name, Any if item.name in untyped else with_lists(hints[item.name]), _default(item, item.name in untyped))
        for item in fields(kind)
    ]
    return make_dataclass(kind.__name__, items)


def _default(item: Field[Any], is_untyped: bool) -> Any:
    if is_untyped:
        return field(default_factory=dict)
    if item.default_factory is not MISSING:
        return field(default_factory=item.default_factory)
    if isinstance(item.default, tuple):
        return field(default_factory=lambda: mutable(item.default))
    return field(default=item.default)
