"""What a layout of records is, and the fields that several layouts read. Knows no layout."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from harness.config.workload import History
from harness.records.strict_json import shown
from harness.workload.line_keys import is_given
from harness.workload.prompt import Prompt


class Place(NamedTuple):
    """Where a record stands, for what it does not say itself."""

    line: int
    """Of the file, or number of the row, from 1."""
    category: str
    """Of records that name none."""


@dataclass(frozen=True)
class Format:
    """A layout of records.

    Of the user's own too: `workload.layout=PACKAGE.MODULE:NAME` names such an object.
    """

    fields: tuple[str, ...]
    """What it reads of a record, beside its sampling."""
    read: Callable[[Any, Place, History], Prompt]
    """(record, its place, whose answers stand between turns) -> the prompt; ValueError where the record is of another
    layout."""
    recognises: Callable[[Sequence[Any]], bool] = lambda rows: False
    """Whether the records of a file, at least one, are of it, as far as the first tells."""


class RecordError(ValueError):
    """What is wrong with a record; the reader of the file adds where it stands."""


def has_fields(all_of: Sequence[str] = (), any_of: Sequence[str] = ()) -> Callable[[Sequence[Any]], bool]:
    """Whether the first record has all of some fields, and one of others where any are given."""

    def recognises(rows: Sequence[Any]) -> bool:
        found = set(rows[0]) if isinstance(rows[0], dict) else set()
        return found.issuperset(all_of) and bool(not any_of or found.intersection(any_of))

    return recognises


def fields_of(row: Any, *names: str) -> list[Any]:
    """The values of the named fields of a record."""
    if not isinstance(row, dict):
        raise RecordError(f"expected an object with {', '.join(names)}, found {type(row).__name__}")
    missing = [name for name in names if name not in row]
    if missing:
        raise RecordError(
            f"expected fields {', '.join(names)}, found {', '.join(map(str, row)) or 'none'} (no {', '.join(missing)})"
        )
    return [row[name] for name in names]


def one_of(row: Any, names: Sequence[str], expected: str) -> str:
    """The one field among some that a record has."""
    present = [name for name in names if isinstance(row, dict) and name in row]
    if len(present) != 1:
        found = ", ".join(map(str, row)) if isinstance(row, dict) else type(row).__name__
        raise RecordError(f"expected {expected}, found {found}")
    return present[0]


def text(value: Any, name: str) -> str:
    """Text that is not empty."""
    if not isinstance(value, str) or not value.strip():
        raise RecordError(f"expected {name} to be text that is not empty, found {shown(value)}")
    return value


def turns(value: Any) -> tuple[str, ...]:
    """Some texts."""
    if not isinstance(value, list) or not value:
        raise RecordError(f"expected turns to be a list of one or more texts, found {shown(value)}")
    return tuple(text(turn, "every turn") for turn in value)


def identifier(value: Any, name: str) -> str:
    """An id: text or an integer."""
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        raise RecordError(f"expected {name} to be text or an integer, found {shown(value)}")
    return str(value)


def schema_text(value: Any) -> str:
    """A JSON schema as text."""
    if not isinstance(value, dict | bool):
        raise RecordError(f"expected a JSON schema (an object), found {type(value).__name__}")
    return json.dumps(value)


def named(row: dict[str, Any], place: Place) -> tuple[str, str]:
    """Id and category of a record, by its place where it has none."""
    prompt_id = identifier(row.get("prompt_id", place.line), "prompt_id")
    return prompt_id, text(row.get("category", place.category), "category")


def system(row: dict[str, Any]) -> str | None:
    """The system message of a record; an empty one is none."""
    found = row.get("system")
    return text(found, "system") if is_given(found) else None


def opening(row: dict[str, Any]) -> str | None:
    """The same as the messages in front of the first turn."""
    found = system(row)
    return None if found is None else json.dumps([{"role": "system", "content": found}])
