"""Spec-Bench (hemingkx/Spec-Bench, data/spec_bench/question.jsonl): MT-Bench's questions are one of its six tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from harness.config.workload import History
from harness.workload.formats import mt_bench
from harness.workload.formats.record import Format, Place
from harness.workload.prompt import Prompt

TASKS = ("translation", "summarization", "qa", "math_reasoning", "rag")
"""Beside `mt_bench`."""


def read(row: Any, place: Place, history: History) -> Prompt:
    prompt = mt_bench.read(row, place, history)
    return replace(prompt, category="mt_bench") if prompt.category in mt_bench.CATEGORIES else prompt


def recognises(rows: Sequence[Any]) -> bool:
    """MT-Bench's records have the same fields: a file with any of the other tasks is Spec-Bench's."""
    found = {row.get("category") for row in rows if isinstance(row, dict)}
    return mt_bench.FORMAT.recognises(rows) and not found.isdisjoint(TASKS)


FORMAT = Format(mt_bench.FIELDS, read, recognises)
