"""HumanEval (openai/human-eval)."""

from __future__ import annotations

from typing import Any

from harness.config.workload import History
from harness.workload.formats.record import Format, Place, fields_of, has_fields, identifier, text
from harness.workload.line_keys import is_given
from harness.workload.prompt import KnownAnswer, Prompt
from harness.workload.tasks import humaneval

FIELDS = ("task_id", "prompt")
OF_TESTS = ("test", "entry_point")


def read(row: Any, _place: Place, _history: History) -> Prompt:
    task_id, prompt = fields_of(row, *FIELDS)
    asked, known = text(prompt, "prompt"), None
    if all(is_given(row.get(name)) for name in OF_TESTS):
        known = KnownAnswer("humaneval", humaneval.known(asked, *(text(row[name], name) for name in OF_TESTS)))
    return Prompt(identifier(task_id, "task_id"), "humaneval", (asked,), known=known)


FORMAT = Format((*FIELDS, *OF_TESTS), read, has_fields(FIELDS))
