"""GSM8K (openai/grade-school-math)."""

from __future__ import annotations

from typing import Any

from harness.config.workload import History
from harness.workload.formats.record import Format, Place, fields_of, has_fields, text
from harness.workload.prompt import Prompt


def read(row: Any, place: Place, _history: History) -> Prompt:
    (question,) = fields_of(row, "question")
    return Prompt(f"gsm8k/{place.line}", "gsm8k", (text(question, "question"),))


FORMAT = Format(("question",), read, has_fields(("question", "answer")))
