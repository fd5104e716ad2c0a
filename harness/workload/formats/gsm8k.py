"""GSM8K (openai/grade-school-math)."""

from __future__ import annotations

from typing import Any

from harness.config.workload import History
from harness.workload.formats.record import Format, Place, fields_of, has_fields, text
from harness.workload.line_keys import is_given
from harness.workload.prompt import KnownAnswer, Prompt
from harness.workload.tasks import gsm8k


def read(row: Any, place: Place, _history: History) -> Prompt:
    (question,) = fields_of(row, "question")
    number = gsm8k.known(text(row["answer"], "answer")) if is_given(row.get("answer")) else None
    known = None if number is None else KnownAnswer("gsm8k", number)
    return Prompt(f"gsm8k/{place.line}", "gsm8k", (text(question, "question"),), known=known)


FORMAT = Format(("question", "answer"), read, has_fields(("question", "answer")))
