"""MT-Bench (lm-sys/FastChat, fastchat/llm_judge/data/mt_bench/question.jsonl)."""

from __future__ import annotations

from typing import Any

from harness.config.workload import History
from harness.workload.formats.record import Format, Place, fields_of, has_fields, identifier, text, turns
from harness.workload.prompt import Prompt

CATEGORIES = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")
FIELDS = ("question_id", "category", "turns")


def read(row: Any, _place: Place, _history: History) -> Prompt:
    question_id, category, given = fields_of(row, *FIELDS)
    return Prompt(identifier(question_id, "question_id"), text(category, "category"), turns(given))


FORMAT = Format(FIELDS, read, has_fields(FIELDS))
