"""Messages with roles, as chat templates take them; SPEED-Bench as NeMo Skills prepares it has them too
(NVIDIA-NeMo/Skills, nemo_skills/dataset/speed-bench/prepare.py)."""

from __future__ import annotations

from typing import Any

from harness.config.workload import History
from harness.workload.formats.record import Format, Place, has_fields, named, one_of, system
from harness.workload.messages import prompt_of
from harness.workload.prompt import Prompt

BESIDE = ("tools", "prompt_id", "category", "system")


def read(row: Any, place: Place, history: History, names: tuple[str, ...] = ("messages",)) -> Prompt:
    """The prompt of a record whose conversation stands in one of some fields."""
    name = one_of(row, names, f"an object with {' or '.join(names)}")
    prompt_id, category = named(row, place)
    tools = row.get("tools") or None
    return prompt_of(prompt_id, category, row[name], history, system=system(row), tools=tools)


FORMAT = Format(("messages", *BESIDE), read, has_fields(("messages",)))
