"""Nested settings as names and plain text: `decoding.temperature`, `0.6`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

MAX_VALUES = 8
"""Different values of a setting that are all listed; of more, only the first and the last."""


def value_rows(mappings: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """(name, text) of every value, those that differ between the mappings listed once each."""
    return [(name, listed(values)) for name, values in distinct_values(mappings).items()]


def distinct_values(mappings: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Dotted name -> the different values of the mappings that have it, as text, in their order; sections together."""
    flat = [flattened(item) for item in mappings]
    names = list(dict.fromkeys(name for item in flat for name in item))
    sections = list(dict.fromkeys(name.partition(".")[0] for name in names))
    names.sort(key=lambda name: sections.index(name.partition(".")[0]))
    return {name: list(dict.fromkeys(item[name] for item in flat if name in item)) for name in names}


def listed(values: Sequence[str]) -> str:
    """Values on one line; of many only the ends."""
    if len(values) <= MAX_VALUES:
        return ", ".join(values)
    return f"{values[0]} … {values[-1]} ({len(values)} values)"


def flattened(mapping: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Dotted name -> text of every value of nested mappings."""
    found: dict[str, str] = {}
    for name, value in mapping.items():
        if isinstance(value, Mapping):
            found |= flattened(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = plain_text(value)
    return found


def plain_text(value: Any) -> str:
    """A setting as text."""
    if isinstance(value, Mapping):
        return " ".join(f"{name}={plain_text(item)}" for name, item in value.items())
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_quoted(item) if isinstance(item, str) else plain_text(item) for item in value) + "]"
    if value is None or isinstance(value, bool):
        return {None: "–", True: "true", False: "false"}[value]
    return str(value)


def _quoted(text: str) -> str:
    """An entry of a list, in quotes where it would not be seen for what it is: blanks at its ends, line breaks."""
    is_plain = text == text.strip() != "" and text.isprintable() and not set(text) & set(',[]"')
    return text if is_plain else json.dumps(text, ensure_ascii=False)
