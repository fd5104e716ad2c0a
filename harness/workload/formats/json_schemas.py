"""JSON schemas (guidance-ai/jsonschemabench): each prompt asks for an object that matches one."""

from __future__ import annotations

from typing import Any

from harness.config.workload import History
from harness.workload.formats.record import Format, Place, fields_of, has_fields, identifier, schema_text, text
from harness.workload.prompt import Prompt

ASK_FOR_SCHEMA = "Answer with a JSON object that matches this schema: "
FIELDS = ("id", "split", "schema")


def read(row: Any, _place: Place, _history: History) -> Prompt:
    given, split, schema = fields_of(row, *FIELDS)
    written = schema_text(schema)
    return Prompt(identifier(given, "id"), text(split, "split"), (ASK_FOR_SCHEMA + written,), written)


FORMAT = Format(FIELDS, read, has_fields(FIELDS))
