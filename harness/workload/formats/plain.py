"""Lines of our own: an object with prompt, text or turns, or a bare string."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.config.workload import History
from harness.workload.formats.record import (
    Format,
    Place,
    has_fields,
    named,
    one_of,
    opening,
    schema_text,
    text,
    turns,
)
from harness.workload.prompt import Prompt

NAMES = ("prompt", "text", "turns")


def read(row: Any, place: Place, _history: History) -> Prompt:
    if isinstance(row, str):
        return Prompt(str(place.line), place.category, (text(row, "the line"),))
    name = one_of(row, NAMES, f"text, or an object with exactly one of {', '.join(NAMES)}")
    asked = turns(row[name]) if name == "turns" else (text(row[name], name),)
    schema = schema_text(row["json_schema"]) if "json_schema" in row else None
    return Prompt(*named(row, place), asked, schema, opening=opening(row))


def recognises(rows: Sequence[Any]) -> bool:
    return isinstance(rows[0], str) or has_fields(any_of=NAMES)(rows)


FORMAT = Format((*NAMES, "prompt_id", "category", "json_schema", "system"), read, recognises)
