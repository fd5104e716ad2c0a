"""HumanEval (openai/human-eval)."""

from __future__ import annotations

from typing import Any

from harness.config.workload import History
from harness.workload.formats.record import Format, Place, fields_of, has_fields, identifier, text
from harness.workload.prompt import Prompt

FIELDS = ("task_id", "prompt")


def read(row: Any, _place: Place, _history: History) -> Prompt:
    task_id, prompt = fields_of(row, *FIELDS)
    return Prompt(identifier(task_id, "task_id"), "humaneval", (text(prompt, "prompt"),))


FORMAT = Format(FIELDS, read, has_fields(FIELDS))
