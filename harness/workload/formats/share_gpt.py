"""ShareGPT's conversations."""

from __future__ import annotations

from typing import Any

from harness.config.workload import History
from harness.workload.formats import messages
from harness.workload.formats.record import Format, Place, has_fields
from harness.workload.prompt import Prompt

NAMES = ("conversations", "conversation")


def read(row: Any, place: Place, history: History) -> Prompt:
    return messages.read(row, place, history, NAMES)


FORMAT = Format((*NAMES, *messages.BESIDE), read, has_fields(any_of=NAMES))
