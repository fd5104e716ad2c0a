"""A foreign file: its text, and the JSON values in it, one after the other. Knows no format."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

EVENT = "data:"


@dataclass(frozen=True)
class Content:
    """The text of a file."""

    text: str

    @classmethod
    def of(cls, path: Path) -> Content:
        """Read a file; raises ValueError where it is not text."""
        try:
            return cls(path.read_text(encoding="utf-8-sig"))
        except UnicodeDecodeError as error:
            raise ValueError(f"expected text in UTF-8, found {error}") from error

    @cached_property
    def values(self) -> tuple[Any, ...]:
        """The one JSON value of the file, or those of its lines; a stream of events gives those of its events.

        Empty where the file is none of these.
        """
        whole = _value(self.text)
        if whole is not None:
            return (whole,)
        lines = [line.strip() for line in self.text.splitlines()]
        if self.is_stream:
            lines = [line.removeprefix(EVENT).strip() for line in lines if line.startswith(EVENT)]
        found = [_value(line) for line in lines if line and line != "[DONE]"]
        return () if None in found else tuple(found)

    @cached_property
    def objects(self) -> tuple[Mapping[str, Any], ...]:
        """The JSON objects of the file; those in a list that is the whole of it, too."""
        values = self.values
        if len(values) == 1 and isinstance(values[0], list):
            values = tuple(values[0])
        return tuple(value for value in values if isinstance(value, dict))

    @property
    def is_stream(self) -> bool:
        """Whether the file holds events as a server streams them."""
        return any(line.startswith(EVENT) for line in self.text.splitlines()[:20])


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def numbers_at(found: Mapping[str, Any], *names: str) -> list[float]:
    """Some numbers of an object; raises ValueError where one is missing or no number."""
    values = []
    for name in names:
        value = found.get(name)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ValueError(f"{name}: expected a number, found {value!r}" if name in found else f"expected {name}")
        values.append(float(value))
    return values
