"""Alpaca's instructions, each with its input below it (tatsu-lab/stanford_alpaca)."""

from __future__ import annotations

from typing import Any

from harness.config.workload import History
from harness.workload.formats.record import Format, Place, fields_of, has_fields, named, opening, text
from harness.workload.line_keys import is_given
from harness.workload.prompt import Prompt


def read(row: Any, place: Place, _history: History) -> Prompt:
    (instruction,) = fields_of(row, "instruction")
    parts = [text(instruction, "instruction")]
    if is_given(row.get("input")):
        parts.append(text(row["input"], "input"))
    return Prompt(*named(row, place), ("\n\n".join(parts),), opening=opening(row))


FORMAT = Format(("instruction", "input", "prompt_id", "category", "system"), read, has_fields(("instruction",)))
