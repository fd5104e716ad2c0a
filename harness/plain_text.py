"""Nested settings as names and plain text: `decoding.temperature`, `0.6`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

MAX_VALUES = 8
"""Different values of a setting that are all listed; of more, only the first and the last."""


def value_rows(mappings: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """(name, text) of every value, those that differ between the mappings listed once each."""
    flat = [flattened(item) for item in mappings]
    rows = []
    for name in dict.fromkeys(name for item in flat for name in item):
        values = list(dict.fromkeys(item.get(name, "") for item in flat))
        few = len(values) <= MAX_VALUES
        rows.append((name, ", ".join(values) if few else f"{values[0]} … {values[-1]} ({len(values)} values)"))
    return rows


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
        return "[" + ", ".join(plain_text(item) for item in value) + "]"
    return (
        {None: "–", True: "true", False: "false"}.get(value, str(value))
        if isinstance(value, bool | None)
        else str(value)
    )
